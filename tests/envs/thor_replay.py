"""Answers as AI2-THOR's controller does, from a floor plan: events in its documented shape.

The agent stands on positions of a floor; an action that would leave it fails as the simulator's
does, with `lastActionSuccess` false and an `errorMessage`.
"""

import math
from types import SimpleNamespace

import numpy as np

FLOOR_HEIGHT = 0.9
SIDES = {"MoveAhead": 0, "MoveRight": 90, "MoveBack": 180, "MoveLeft": 270}


class ReplayController:
    """One kitchen; keeps what it was asked."""

    def __init__(self, objects, floor, size=255):
        self.objects = objects
        self.floor = {(round(x, 2), round(z, 2)) for x, z in floor}
        self.size = size
        self.asked = []
        self.stopped = False

    def reset(self, scene):
        self.asked.append({"action": "reset", "scene": scene})
        self.x, self.z, self.rotation, self.horizon = 0.0, 0.0, 0.0, 0.0
        return self._event("Initialize")

    def stop(self):
        self.stopped = True

    def step(self, action, **arguments):
        self.asked.append({"action": action, **arguments})
        if action == "GetReachablePositions":
            places = [{"x": x, "y": FLOOR_HEIGHT, "z": z} for x, z in sorted(self.floor)]
            return self._event(action, answer=places)
        if action == "Teleport":
            place = arguments["position"]
            if (round(place["x"], 2), round(place["z"], 2)) not in self.floor:
                return self._event(action, error=f"{place} is not on the floor")
            self.x, self.z = place["x"], place["z"]
            self.rotation = float(arguments["rotation"]["y"])
            self.horizon = float(arguments["horizon"])
        elif action in SIDES:
            return self._move(action, arguments["moveMagnitude"])
        elif action in ("RotateRight", "RotateLeft"):
            turn = arguments["degrees"] if action == "RotateRight" else -arguments["degrees"]
            self.rotation = (self.rotation + turn) % 360
        elif action in ("LookUp", "LookDown"):
            tilt = arguments["degrees"] if action == "LookDown" else -arguments["degrees"]
            if not -30 <= self.horizon + tilt <= 60:
                return self._event(action, error="cannot look further")
            self.horizon += tilt
        else:
            raise ValueError(f"invalid action: {action}")
        return self._event(action)

    def _move(self, action, metres):
        angle = math.radians(self.rotation + SIDES[action])
        for piece in range(1, round(metres / 0.1) + 1):
            x = round(self.x + 0.1 * piece * math.sin(angle), 2)
            z = round(self.z + 0.1 * piece * math.cos(angle), 2)
            if (x, z) not in self.floor:
                return self._event(action, error="Counter is blocking the agent")
        self.x, self.z = x, z
        return self._event(action)

    def _event(self, action, *, error="", answer=None):
        agent = {
            "name": "agent",
            "position": {"x": self.x, "y": FLOOR_HEIGHT + 0.0009, "z": self.z},
            "rotation": {"x": -0.0, "y": self.rotation + 1e-5, "z": 0.0},
            "cameraHorizon": self.horizon + 1e-5,
            "isStanding": True,
        }
        frame = np.zeros((self.size, self.size, 3), np.uint8)
        frame[:, :, 0] = int(self.rotation) % 256
        frame[:, :, 1] = int(abs(self.x) * 10) % 256
        frame[:, :, 2] = int(abs(self.z) * 10) % 256
        return SimpleNamespace(
            frame=frame,
            metadata={
                "agent": agent,
                "objects": [self._object(kind, x, z) for kind, x, z in self.objects],
                "sceneName": "FloorPlan1",
                "lastAction": action,
                "lastActionSuccess": not error,
                "errorMessage": error,
                "actionReturn": answer,
            },
        )

    def _object(self, kind, x, z):
        angle = math.degrees(math.atan2(x - self.x, z - self.z)) - self.rotation
        return {
            "name": f"{kind}_1",
            "objectId": f"{kind}|{x:+.2f}|+00.90|{z:+.2f}",
            "objectType": kind,
            "position": {"x": x, "y": 0.9, "z": z},
            "rotation": {"x": 0.0, "y": 0.0, "z": 0.0},
            "visible": abs((angle + 180) % 360 - 180) < 50,
            "distance": math.hypot(x - self.x, z - self.z),
        }
