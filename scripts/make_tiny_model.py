"""Write a tiny Qwen2 with random weights and a ChatML tokenizer to a folder, for a vLLM that serves without downloads.

python scripts/make_tiny_model.py FOLDER [--seed 0] [--hidden-size 128] [--layers 2] [--vocabulary 4096]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saecache_rl.engines.vllm.tiny_model import VOCABULARY, make_tiny_model
from saecache_rl.errors import InputError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--hidden-size", type=int, default=128, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="number of token ids")
    given = parser.parse_args()
    try:
        folder = make_tiny_model(given.folder, given.seed, given.hidden_size, given.layers, given.vocabulary)
    except InputError as error:
        print(f"make_tiny_model: {error}", file=sys.stderr)
        return 2
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
