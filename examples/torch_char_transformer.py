"""A small decoder that learns to write Python, character by character, on any number of ranks.

    horarun -np 2 python examples/torch_char_transformer.py --compression int8

The text is on every machine: the sources of Python's own standard library. Every rank trains on its
share of each batch and DistributedOptimizer averages the gradients, compressed for the journey if
asked for. What to look at: the loss in bits per character, on text that was never trained on, and
the tokens per second of all ranks together. By default it takes about a minute on two cores.
"""

from __future__ import annotations

import argparse
import math
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import hora
import hora.torch as hvd

CHARACTERS = 128  # ASCII; what is beyond becomes a question mark.
HELD_OUT = 0.05


class Block(nn.Module):
    """Causal attention and a two-layer perceptron, each added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output; `x` is batch x position x width."""
        batch, length, width = x.shape
        parts = self.query_key_value(self.norm_1(x)).chunk(3, dim=-1)
        by_head = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(*by_head, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.norm_2(x))))


class Decoder(nn.Module):
    """Characters in, the scores of each next character out."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.character = nn.Embedding(CHARACTERS, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, CHARACTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return batch x position x character; `text` is batch x position, at most `context`."""
        positions = torch.arange(text.shape[1])
        return self.score(self.norm(self.blocks(self.character(text) + self.position(positions))))


def load(limit: int) -> torch.Tensor:
    """Return up to `limit` characters of the standard library, the same on all ranks."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text, size = [], 0
    for path in sorted(folder.glob("*.py")):
        text.append(path.read_bytes())
        size += len(text[-1])
        if size >= limit:
            break
    codes = torch.frombuffer(bytearray(b"".join(text)[:limit]), dtype=torch.uint8).long()
    return torch.where(codes < CHARACTERS, codes, ord("?"))


def windows(text: torch.Tensor, starts: torch.Tensor, length: int) -> torch.Tensor:
    """Return the pieces of `length` characters that begin at `starts`."""
    return text[starts[:, None] + torch.arange(length)]


def loss_of(model: Decoder, pieces: torch.Tensor) -> torch.Tensor:
    """Return the sum over all characters of the loss in nats; each piece has one more than used."""
    scores = model(pieces[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten(), reduction="sum")


def mine(things: torch.Tensor) -> torch.Tensor:
    """Return this rank's share."""
    return things[hvd.rank() :: hvd.size()]


@torch.no_grad()
def held_out_loss(model: Decoder, text: torch.Tensor) -> float:
    """Return the mean loss in bits per character; every rank reads its share of the text."""
    length = model.context + 1
    starts = torch.arange(0, len(text) - length + 1, model.context)[:128]
    share = windows(text, mine(starts), length)
    total = sum((loss_of(model, pieces) for pieces in share.split(16)), torch.zeros(()))
    everybody = float(hvd.allreduce(total, op=hvd.Sum, name="held out"))
    return everybody / (len(starts) * model.context) / math.log(2)


@torch.no_grad()
def write(model: Decoder, beginning: str, length: int) -> str:
    """Return `beginning` and `length` characters that the model finds likely."""
    random = torch.Generator().manual_seed(0)
    text = torch.tensor([[ord(character) for character in beginning]])
    for _ in range(length):
        likely = F.softmax(model(text[:, -model.context :])[0, -1] / 0.7, dim=0)
        text = torch.cat([text, torch.multinomial(likely, 1, generator=random)[None]], dim=1)
    return "".join(map(chr, text[0].tolist()))


def compression_named(name: str) -> Any:
    """Return what hora.torch.Compression calls so, or the codec of these words; or ends the program
    if there is no such thing.
    """
    names = [name for name in vars(hvd.Compression) if not name.startswith("_")]
    if name in names:
        return getattr(hvd.Compression, name)
    try:
        return hora.codec(name)
    except ValueError as error:
        sys.exit(f"--compression {name}: there are {', '.join(names)}, and codecs; {error}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--compression",
        default="none",
        help="of gradients: none, fp16, bf16, int8, or a codec such as 'topk(ratio=0.01)+ef'",
    )
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--batch-size", type=int, default=16, help="pieces, over all ranks")
    parser.add_argument("--context", type=int, default=128, help="characters of a piece")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--characters", type=int, default=2_000_000, help="of the text")
    parser.add_argument("--write", type=int, default=200, help="characters to write at the end")
    parser.add_argument("--require-loss", type=float, default=math.inf, metavar="BITS")
    return parser.parse_args()


def train(model: Decoder, text: torch.Tensor, arguments: argparse.Namespace) -> float:
    """Train all steps, tell the loss now and then, and return tokens per second of all ranks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression_named(arguments.compression),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=arguments.steps)
    random = torch.Generator().manual_seed(1)  # The same pieces in the same order on all ranks.
    tokens = arguments.batch_size * arguments.context
    started = time.perf_counter()
    for step in range(arguments.steps):
        starts = torch.randint(
            len(text) - arguments.context, (arguments.batch_size,), generator=random
        )
        optimizer.zero_grad()
        loss = loss_of(model, windows(text, mine(starts), arguments.context + 1)) / tokens
        (loss * hvd.size()).backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % max(arguments.steps // 10, 1) == 0:
            bits = float(hvd.allreduce(loss.detach(), op=hvd.Sum, name="loss")) / math.log(2)
            if hvd.rank() == 0:
                rate = (step + 1) * tokens / (time.perf_counter() - started)
                print(f"step {step + 1:4}  loss {bits:.3f} bits  {rate:.0f} tokens/s", flush=True)
    return arguments.steps * tokens / (time.perf_counter() - started)


def main() -> int:
    """Train, test and report; the exit status says whether the loss is as required."""
    arguments = parse_arguments()
    hvd.init()
    if arguments.batch_size < hvd.size():
        sys.exit(f"--batch-size {arguments.batch_size} is less than the {hvd.size()} ranks")
    torch.manual_seed(42)
    torch.set_num_threads(1)
    text = load(arguments.characters)
    cut = int(len(text) * (1 - HELD_OUT))
    model = Decoder(arguments.layers, arguments.width, arguments.heads, arguments.context)
    rate = train(model, text[:cut], arguments)
    loss = held_out_loss(model, text[cut:])
    if hvd.rank() == 0:
        if arguments.write > 0:
            print(write(model, "def ", arguments.write))
        print(
            f"{hvd.size()} rank(s)  compression {arguments.compression}  "
            f"held-out loss {loss:.3f} bits  {rate:.0f} tokens/s",
            flush=True,
        )
    return 0 if loss <= arguments.require_loss else 1


if __name__ == "__main__":
    sys.exit(main())
