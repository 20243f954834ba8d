"""Times the native kernels alone on the shapes of the decode benchmark.

Prints one JSON object: read bandwidth, the share of it that one-token steps reach, the same beside
a busy loop on one core, and the rate of a 512-token call. Weights exceed every cache.
"""

import argparse
import ctypes
import json
import multiprocessing
import statistics
import time

import torch

from headrace import _native

HIDDEN, WIDTH, EXPERTS, TOP_K = 2048, 768, 128, 8
BF16 = 1


def weights(rows: int, columns: int) -> int:
    """The address of random bfloat16 [rows, columns] on huge pages: one block, repeated."""
    block = (torch.randn(1 << 16) * columns**-0.5).bfloat16()
    address, nbytes = _native.alloc(rows * columns * 2), rows * columns * 2
    for at in range(0, nbytes, block.nbytes):
        ctypes.memmove(address + at, block.data_ptr(), min(block.nbytes, nbytes - at))
    return address


class Step:
    """The weight products of one step: per layer two linears and the experts, then a head."""

    def __init__(self, pool: _native.Pool, layers: int) -> None:
        self.pool = pool
        shapes = [(5120, HIDDEN), (HIDDEN, 4096)] * layers + [(32000, HIDDEN)]
        self.matrices = [
            _native.Matrix([(weights(rows, columns), rows, columns * 2, BF16)], columns)
            for rows, columns in shapes
        ]
        banks = [weights(EXPERTS * 3 * WIDTH, HIDDEN) for _ in range(layers)]
        self.layers = [self.layer(bank) for bank in banks]
        self.x = torch.randn(4096)
        self.out = torch.empty(32000)
        self.share = torch.full((1, TOP_K), 1 / TOP_K)
        self.choices = [torch.randperm(EXPERTS)[:TOP_K].int() for _ in range(97)]
        self.turn = 0
        self.nbytes = sum(m.nbytes for m in self.matrices)
        self.nbytes += layers * TOP_K * self.layers[0].row_nbytes

    def layer(self, base: int) -> _native.ExpertLayer:
        part = WIDTH * HIDDEN * 2
        gate, up, down = ([base + (3 * e + i) * part for e in range(EXPERTS)] for i in range(3))
        return _native.ExpertLayer(
            formats=(BF16,) * 3, hidden=HIDDEN, width=WIDTH, activation=0,
            gate=gate, up=up, down=down,
            gate_stride_bytes=HIDDEN * 2, up_stride_bytes=HIDDEN * 2, down_stride_bytes=WIDTH * 2,
        )  # fmt: skip

    def run(self) -> None:
        x, y = self.x.data_ptr(), self.out.data_ptr()
        for i, layer in enumerate(self.layers):
            self.pool.linear(x, 1, self.matrices[2 * i], 0, y, False)
            self.pool.linear(x, 1, self.matrices[2 * i + 1], 0, y, False)
            self.turn = (self.turn + 1) % len(self.choices)
            ids, share = self.choices[self.turn].data_ptr(), self.share.data_ptr()
            self.pool.experts(x, 1, ids, share, TOP_K, layer, y, False)
        self.pool.linear(x, 1, self.matrices[-1], 0, y, False)

    def rate(self, seconds: float) -> float:
        """Bytes/s: the median step of `seconds`."""
        took, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            self.run()
            took.append(time.perf_counter() - start)
        return self.nbytes / statistics.median(took)

    def mean_rate(self, seconds: float) -> float:
        """Bytes/s over `seconds`: what a user sees when some steps are held up."""
        start, steps = time.perf_counter(), 0
        while time.perf_counter() < start + seconds:
            self.run()
            steps += 1
        return steps * self.nbytes / (time.perf_counter() - start)

    def prefill_flops(self, tokens: int) -> float:
        """FLOP/s of one expert layer over `tokens`."""
        x = torch.randn(tokens, HIDDEN)
        y = torch.empty_like(x)
        ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(tokens)]).int()
        share = self.share.expand(tokens, TOP_K).contiguous()
        took = []
        for _ in range(3):
            start = time.perf_counter()
            self.pool.experts(
                x.data_ptr(), tokens, ids.data_ptr(), share.data_ptr(), TOP_K, self.layers[0],
                y.data_ptr(), False,
            )  # fmt: skip
            took.append(time.perf_counter() - start)
        return tokens * TOP_K * 6 * WIDTH * HIDDEN / statistics.median(took)


def spin() -> None:
    while True:
        pass


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--isa", default="")
    parser.add_argument("--prefill", type=int, default=512, help="tokens; 0 = skip")
    parser.add_argument("--rescue", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    pool = _native.Pool(isa=args.isa, rescue=args.rescue)
    step = Step(pool, args.layers)
    step.run()
    bandwidths, rates, means = [], [], []
    for _ in range(5):
        bandwidths.append(_native.measure_read_bandwidth(pool, 1 << 30, args.seconds / 5))
        rates.append(step.rate(args.seconds / 5))
        means.append(step.mean_rate(args.seconds / 5))
    busy = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
    busy.start()
    time.sleep(1.5)
    beside = step.mean_rate(args.seconds)
    busy.kill()
    busy.join()
    after = step.mean_rate(args.seconds / 2)
    bandwidth = statistics.median(bandwidths)
    result = {
        "isa": pool.isa,
        "threads": pool.threads,
        "bandwidth": bandwidth,
        "bandwidths": bandwidths,
        "decode": statistics.median(rates),
        "decode_share": statistics.median(r / b for r, b in zip(rates, bandwidths, strict=True)),
        "decode_mean": statistics.median(means),
        "busy_share": beside / statistics.median([*means, after]),
    }
    if args.prefill:
        result["prefill_gflops"] = step.prefill_flops(args.prefill) / 1e9
    print(json.dumps(result, indent=1))  # noqa: T201
    pool.close()


if __name__ == "__main__":
    main()
