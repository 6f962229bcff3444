"""Frames of a batch as the vision tower reads them."""

from collections.abc import Sequence
from weakref import WeakValueDictionary

from PIL import Image

from vagen.envs.images import decode_png
from vagen.models.processor import ProcessedImage, Processor
from vagen.rollout.types import TokenRow


class ImageCache:
    """Processed images by the digest of their PNG.

    Every pass over a batch shows the same frames: each is decoded once for as long as the processor
    remembers it.
    """

    def __init__(self, processor: Processor):
        """Starts empty, for the model that `processor` belongs to."""
        self.processor = processor
        self._known: WeakValueDictionary[str, ProcessedImage] = WeakValueDictionary()

    def shown_by(
        self, rows: Sequence[TokenRow], images: dict[str, bytes]
    ) -> dict[str, ProcessedImage]:
        """Every image that the rows show.

        Args:
            rows: Their `images` name PNG bytes by SHA-256.
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
