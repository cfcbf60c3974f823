"""What every script needs: progress lines, threads, atomic files, a second process."""

import json
import os
import sys
import time
from pathlib import Path

START = time.time()


def log(message: str) -> None:
    """A progress line with the seconds since the start, flushed, so that `tail -f` shows it."""
    print(f"[{time.time() - START:7.1f}s] {message}", flush=True)


def use_threads(count: int) -> None:
    """Before the first matmul; an unset OMP variable would take every core."""
    import torch

    torch.set_num_threads(count)
    torch.set_flush_denormal(True)


def save_atomically(value: object, path: Path) -> None:
    """A checkpoint is either the old one or the new one, never half of it."""
    import torch

    partial = path.with_suffix(".partial")
    torch.save(value, partial)
    os.replace(partial, path)


def write_json(path: Path, value: object, indent: int | None = 1) -> None:
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def run_workers(workers: int, function, *arguments) -> None:
    """Calls function(rank, workers, *arguments) in `workers` processes joined by gloo.

    Two processes of one thread beat one process of two threads here: most
    operations are too small to be split well.
    """
    if workers == 1:
        function(0, 1, *arguments)
        return
    import torch.multiprocessing as processes

    port = 20000 + os.getpid() % 20000
    processes.spawn(_worker, args=(workers, port, function, arguments), nprocs=workers)


def _worker(rank: int, workers: int, port: int, function, arguments) -> None:
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    try:
        function(rank, workers, *arguments)
    finally:
        dist.destroy_process_group()
        sys.stdout.flush()


def average_gradients(parameters: list, workers: int) -> None:
    """One all-reduce over one flat buffer; the ranks' parameters stay equal to the bit."""
    if workers == 1:
        return
    import torch
    import torch.distributed as dist

    flat = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])
    dist.all_reduce(flat)
    flat /= workers
    offset = 0
    for parameter in parameters:
        count = parameter.numel()
        parameter.grad.copy_(flat[offset : offset + count].view_as(parameter.grad))
        offset += count


def agree(value: float, workers: int) -> float:
    """Rank 0's number, on every rank."""
    if workers == 1:
        return value
    import torch
    import torch.distributed as dist

    box = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(box, 0)
    return float(box)


def schedule(step: int, total: int, warmup: int, flat: float) -> float:
    """Factor of the learning rate: warm-up, flat up to `flat` of the run, then linear to 2 %."""
    if step < warmup:
        return (step + 1) / warmup
    if step < flat * total:
        return 1.0
    return 1.0 - 0.98 * (step - flat * total) / max(1.0, (1 - flat) * total)
