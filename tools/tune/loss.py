"""What a block costs, against the target's likeliest tokens."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

import drafter
from config import Drafter
from labels import Batch


@dataclass(frozen=True)
class Weighting:
    """How parts of the loss count."""

    hard: float  # share of the likeliest token alone in the target's label
    follow: float  # share of the float drafter's distributions in the loss


def hidden_of(p: dict, table: torch.Tensor, batch: Batch, c: Drafter) -> torch.Tensor:
    """Final hidden of the rows that predict [sequence, anchor, slot, hidden]."""
    each = torch.arange(len(batch.ids))[:, None]
    pending = batch.ids[each, batch.anchors]
    kv = drafter.context(p, batch.taps, c=c)
    return drafter.blocks(p, table, kv, pending, batch.anchors, c)[:, :, 1:]


def losses(
    p: dict,
    words: tuple[torch.Tensor, torch.Tensor],
    batch: Batch,
    c: Drafter,
    how: Weighting,
    leader: dict | None = None,
) -> tuple[torch.Tensor, dict]:
    """The loss of docs/quality.md, and what happened, for the log.

    Slot k = 0, 1, … of a block counts exp(-k / 4): the cross entropy of the
    drafter's distribution to the target's over its listed tokens, of which `hard`
    is to the likeliest alone; and the selector's cross entropy over the drafter's
    own candidates where the likeliest token is one of them, given the true token
    before. A share `follow` of it gives way to the cross entropies to what the
    `leader`, the float drafter, says of all tokens, and of its own candidates.
    """
    table, head = words
    each = torch.arange(len(batch.ids))[:, None]
    hidden = hidden_of(p, table, batch, c)

    position = batch.anchors[..., None] + torch.arange(1, c.block)
    row = position - batch.first[:, None, None]
    inside = ((row >= 0) & (row < batch.count[:, None, None])).float()
    row = row.clamp(0, batch.top_ids.shape[1] - 1)
    position = position.clamp_max(batch.ids.shape[1] - 1)
    top_ids, logprobs = batch.top_ids[each[..., None], row], batch.top_logprobs[each[..., None], row]
    label, before = top_ids[..., 0], batch.ids[each[..., None], position - 1]
    weight = inside * torch.exp(-torch.arange(c.block - 1) / 4.0)

    logits = F.linear(hidden, head).float()
    logs = logits.log_softmax(-1)
    teacher = (1 - how.hard) * logprobs.softmax(-1)
    teacher[..., 0] += how.hard
    unary = -(teacher * logs.gather(-1, top_ids)).sum(-1)

    own, candidates = logits.topk(c.top_k, -1)
    hit = candidates == label[..., None]
    among = hit.any(-1)
    scores = own + drafter.edge_scores(p, hidden, before, candidates)
    index = hit.float().argmax(-1, keepdim=True)
    chain = -scores.log_softmax(-1).gather(-1, index)[..., 0] * among

    loss = unary + chain
    if leader is not None:
        with torch.no_grad():
            led = hidden_of(leader, table, batch, c)
            lead_logits = F.linear(led, head).float()
            lead, theirs = lead_logits.topk(c.top_k, -1)
            lead_scores = lead + drafter.edge_scores(leader, led, before, theirs)
        scored = logits.gather(-1, theirs) + drafter.edge_scores(p, hidden, before, theirs)
        followed = -(lead_logits.softmax(-1) * logs).sum(-1)
        followed = followed - (lead_scores.softmax(-1) * scored.log_softmax(-1)).sum(-1)
        loss = (1 - how.follow) * loss + how.follow * followed
    loss = (loss * weight).sum() / weight.sum().clamp_min(1e-9)
    with torch.no_grad():
        walk = (scores.argmax(-1, keepdim=True) == index)[..., 0] & among & (inside > 0)
        facts = {
            "prefix": float(walk.long().cumprod(-1).sum(-1).float().mean()),
            "among": float((among * inside).sum() / inside.sum().clamp_min(1)),
        }
    return loss, facts
