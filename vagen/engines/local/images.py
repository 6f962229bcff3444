"""Frames of a batch as the vision tower reads them."""

from collections.abc import Sequence

from PIL import Image

from vagen.models.processor import ProcessedImage, Processor
from vagen.rollout.images import decode_png
from vagen.rollout.types import TokenRow


def process_images(
    rows: Sequence[TokenRow], images: dict[str, bytes], processor: Processor
) -> dict[str, ProcessedImage]:
    """Processes every image that the rows show, once.

    Args:
        rows: Their `images` name PNG bytes by SHA-256.
        images: PNG bytes by SHA-256.
        processor: Of the model that will read them; it remembers the latest.
    """
    wanted = {digest for row in rows for digest in row.images}
    return {
        digest: processor.process_image(Image.fromarray(decode_png(images[digest])))
        for digest in wanted
    }
