"""Write what the starter's image tower reads of its bank: `data/bank_readings.safetensors`.

    python scripts/read_bank.py

A minute and a half of one core, which `ucofia setup` need not spend on every machine. To be run
again when `data/bank.txt`, the tower or the way of drawing texts changes; tests/test_starter.py
compares some of them.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

from ucofia import checkpoint, starter_parts
from ucofia.encode import reading
from ucofia.query.text_kinds import prompt

OUT = Path(__file__).parent.parent / "src" / "ucofia" / "data" / starter_parts.READINGS
AT_ONCE = 64


def main() -> None:
    torch.set_num_threads(1)
    model = checkpoint.load(starter_parts.folder())  # by its folder nothing is given to it
    asked = [prompt(text) for text in starter_parts.bank_texts()]
    found: dict[str, torch.Tensor] = {}
    for start in range(0, len(asked), AT_ONCE):
        batch = model.tokenize(asked[start : start + AT_ONCE])
        vectors, is_read = model.backbone.read(batch)
        texts = map(reading.drawable, model.backbone.text.texts_of(batch))
        found |= {text: v for text, v, ok in zip(texts, vectors, is_read, strict=True) if ok}
    written = torch.frombuffer(bytearray("\n".join(found).encode()), dtype=torch.uint8)
    vectors = torch.stack([*found.values()]).half()
    save_file({"texts": written, "vectors": vectors}, OUT)
    print(f"{len(found)} texts, {OUT.stat().st_size / 1e6:.1f} MB in {OUT}")


if __name__ == "__main__":
    main()
