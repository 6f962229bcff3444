"""Preprocessed frames of a batch for the vision tower."""

from collections.abc import Sequence
from weakref import WeakValueDictionary

from PIL import Image

from vagen.envs.images import decode_png
from vagen.models.processor import ProcessedImage, Processor
from vagen.rollout.types import TokenRow


class ImageCache:
    """Preprocessed images by the digest of their PNG.

    Every pass over a batch needs the same frames; each is decoded once while the cache keeps it.
    """

    def __init__(self, processor: Processor):
        """Starts empty, for the model of `processor`."""
        self.processor = processor
        self._known: WeakValueDictionary[str, ProcessedImage] = WeakValueDictionary()

    def shown_by(
        self, rows: Sequence[TokenRow], images: dict[str, bytes]
    ) -> dict[str, ProcessedImage]:
        """All images of the rows, preprocessed.

        Args:
            rows: Rows whose `images` are SHA-256 digests.
            images: PNG bytes by SHA-256.
        """
        wanted = {digest for row in rows for digest in row.images}
        return {digest: self._processed(digest, images) for digest in wanted}

    def _processed(self, digest: str, images: dict[str, bytes]) -> ProcessedImage:
        processed = self._known.get(digest)
        if processed is None:
            frame = Image.fromarray(decode_png(images[digest]))
            processed = self._known[digest] = self.processor.process_image(frame)
        return processed
