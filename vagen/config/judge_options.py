"""The judge's section of an experiment: what is rewarded, by which judge, and how it is guarded."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from vagen.config.base import DIGEST_EXEMPT, Fraction, Section
from vagen.config.client_options import ClientConfig

USUAL_KEY = "OPENAI_API_KEY"


class LLMJudgeConfig(ClientConfig):
    """The language model that judges: any OpenAI-compatible endpoint, or a vendor's model.

    The limits hold for a whole run; with `engine: verl` each judging process gets a share.
    """

    base_url: str | None = None
    """Base URL of the API, such as `http://vagen-judge.vagen.svc:8000/v1`; null for a vendor's
    model."""
    model: str | None = None
    """Model name at the endpoint, or `VENDOR:MODEL` as for `vagen eval` (`anthropic:MODEL`). The
    cache uses it as a key, so one name must stand for one model."""
    api_key_env: str | None = USUAL_KEY
    """Environment variable with the API key; null sends none. A vendor's model takes the vendor's
    usual one instead of `OPENAI_API_KEY`."""
    temperature: float = Field(default=0.1, ge=0.0)
    """Sampling temperature; 0 is greedy."""
    max_tokens: PositiveInt = 400
    """Maximum tokens of an answer."""
    json_schema: bool = True
    """Ask the server to constrain answers to a JSON schema; a server that refuses is asked
    without."""
    requests_per_second: PositiveFloat | None = 70.0
    """Maximum requests per second; null is no limit."""
    deadline: PositiveFloat = 600.0
    """Maximum seconds for the statements of a batch; statements without an answer have no
    verdict."""

    @property
    def request_rate(self) -> float | None:
        """See `ClientConfig`."""
        return self.requests_per_second

    @property
    def where(self) -> str:
        """Where it is asked, for messages."""
        return f"at {self.base_url}" if self.base_url else "of its vendor"


class SecondJudgeConfig(Section):
    """A second judge on a sample of turns; `judge/kappa` logs the agreement of the two."""

    fraction: Fraction = 0.0
    """Share of the judged turns; 0 is off."""
    type: Literal["rule", "llm"] = "rule"
    """Type of the second judge."""
    llm: LLMJudgeConfig = LLMJudgeConfig()


class ScheduleConfig(Section):
    """Changes the weights of the judge's rewards over the run."""

    type: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the decay of both weights."""
    iterations: PositiveInt | None = None
    """Length of the decay; null takes `trainer.total_training_steps`."""
    floor: Fraction = 0.0
    """Factor of the weights after the decay."""
    max_return_share: Annotated[float, Field(gt=0.0)] | None = None
    """Largest standard deviation of judge rewards per trajectory, as a share of that of other
    rewards (.1 is strict); null is off."""


class InformationConfig(Section):
    """Pays a text for what it says about its own state: its score minus its mean score against
    states of other episodes.
    """

    enable: bool = False
    """Subtract that mean in training; needs a rule judge for every environment."""
    retired: ClassVar[dict[str, Any]] = {"states": 16}


class RepetitionConfig(Section):
    """Charges texts that occur more often than the states they describe: the share of near
    duplicates in the batch minus the share of states that the text fits. Near duplicates share 70 %
    of their words, and all numbers and directions.
    """

    enable: bool = False
    """Subtract the charge in training."""
    weight: float = Field(default=0.5, ge=0.0)
    """Deduction from the score per share."""
    top_k: Annotated[int, Field(ge=0), DIGEST_EXEMPT] = 0
    """VAGEN's own charge: each of the k most frequent texts of a batch that scores below .35 gets
    -.1 (VAGEN: 5). 0 is off."""
    retired: ClassVar[dict[str, Any]] = {"similarity": 0.7}


class AlarmConfig(Section):
    """Raises `judge/alarm` where judge scores rise while success falls, both by .05 or more."""

    enable: bool = True
    """Compare the two over the run; the alarm does not change training."""
    window: Annotated[int, Field(ge=4)] = 20
    """Iterations in the comparison: the later half against the earlier half."""
    retired: ClassVar[dict[str, Any]] = {"min_rise": 0.05, "min_fall": 0.05}


class CalibrationConfig(Section):
    """Minimum measured quality of the judge for a run to start."""

    path: str | None = None
    """`calibration.json` of this judge, from `vagen judge calibrate`; null requires none."""
    min_precision: Fraction = 0.98
    """Minimum precision in every environment."""
    min_recall: Fraction = 0.95
    """Minimum recall in every environment."""
    on_failure: Literal["refuse", "warn"] = "refuse"
    """What happens if the judge falls short."""


class JudgeConfig(Section):
    """Reward for world-model reasoning: what the agent says it sees and predicts."""

    use_state_reward: bool = True
    """Pay this reward."""
    type: Literal["rule", "llm", "cascade"] = "rule"
    """Judge of the statements: rules, a language model, or rules first and a language model for
    what rules cannot parse (`cascade`)."""
    observation_weight: float = Field(default=0.5, ge=0.0)
    """beta_s: reward of a fully correct `<observation>`."""
    prediction_weight: float = Field(default=0.5, ge=0.0)
    """beta_w: reward of a fully correct `<prediction>`."""
    above_chance: Annotated[bool, DIGEST_EXEMPT] = False
    """Pay (score - blind) / (1 - blind), at least 0; blind is the best constant text's score,
    measured by `build`. Off: pay the score, as the papers do."""
    sampling_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of turns that are judged, chosen by trajectory and turn; other turns get no judge
    reward."""
    max_absent: Fraction = 0.5
    """Largest share of missing verdicts in a batch; above it the step fails and can be repeated."""
    gate: bool = True
    """Refuse texts that hedge, contradict themselves or address the judge. Off: rules also pay for
    recall alone; use this only to study reward hacking."""
    schedule: ScheduleConfig = ScheduleConfig()
    information: InformationConfig = InformationConfig()
    repetition: RepetitionConfig = RepetitionConfig()
    alarm: AlarmConfig = AlarmConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    llm: LLMJudgeConfig = LLMJudgeConfig()
    second: SecondJudgeConfig = SecondJudgeConfig()

    def endpoints(self) -> dict[str, LLMJudgeConfig]:
        """The endpoints that the judges ask, by where they stand in the configuration."""
        found = {}
        if self.use_state_reward and self.type != "rule":
            found["judge.llm"] = self.llm
        if self.use_state_reward and self.second.fraction > 0 and self.second.type == "llm":
            found["judge.second.llm"] = self.second.llm
        return found
