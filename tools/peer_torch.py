#!/usr/bin/env python3
"""The same training step in PyTorch, timed: what `overtok bench step` stands beside. Needs PyTorch alone.

  tools/peer_torch.py --hidden 512 --inner 1792 --layers 6 --heads 8 --kv-heads 8 --head-dim 64 --vocab 128256 \\
      --sequence 4096 --batch 32 --micro-batch 32 --hybrid-norm --device cuda --precision bf16 [--candidates 24576] [--compile]

Prints one JSON line: tokens_per_second, step_ms (the median), peak_gib, losses, and what was run. The model is docs/model.md's, the
optimizers docs/optimizers.md's; ids are drawn as `--ids text` draws them, in windows of one document. Where PyTorch offers
several ways, the faster one is taken: fused attention (the quicker of FlashAttention's and cuDNN's kernels on the device), parameters in
stacks that the optimizer passes over at once, Newton-Schulz in batches, a head that leaves its gradients in the forward pass. Neither
[tokens, V] logits nor [S, S] scores exist whole; bf16 keeps master weights, gradients and optimizer state in f32. Where the
device's memory is too small for a micro-batch, it is halved, which the result tells.
"""
import argparse
import json
import math
import os
import resource
import statistics
import sys
import time

# Tensors of several sizes come and go within a step: without it the allocator's gaps cost memory.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Newton-Schulz
TEXT_EXPONENT = 1.16  # probability of id i proportional to (i + 1)^-1.16
FUSED = getattr(F, "scaled_dot_product_attention", None)  # PyTorch 2.0 and later
GROUPED = FUSED is not None and "enable_gqa" in (FUSED.__doc__ or "")  # 2.5: keys of fewer heads than queries
LOGITS_AT_ONCE = 1 << 29  # elements of a chunk's logits, 1 GiB in bf16; fewer rows make the head's products slower


def parse(arguments=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, value, meaning in (
            ("hidden", 256, "d"), ("inner", 768, "width of the MLP"), ("layers", 4, "blocks"), ("heads", 4, "query heads"),
            ("kv-heads", 2, "key and value heads"), ("head-dim", 64, "width of a head"), ("vocab", 32000, "V"),
            ("sequence", 256, "positions of a window"), ("batch", 8, "windows of a step"),
            ("micro-batch", 0, "windows of a forward pass; 0: the batch"),
            ("candidates", 0, "classes P of a sampled softmax, one set a step; 0: all V"),
            ("chunk-rows", 0, "positions whose logits exist at once; 0: as many as 1 GiB of bf16 takes"),
            ("steps", 5, "iterations of Newton-Schulz"), ("warmup", 2, "steps before the clock"),
            ("repetitions", 5, "steps timed"), ("threads", 0, "threads of the CPU; 0: PyTorch's choice"), ("seed", 0, "")):
        p.add_argument(f"--{name}", type=int, default=value, help=meaning or " ")
    for name, value in (("rope-theta", 1e4), ("rms-norm-eps", 1e-5), ("z-loss", 0.0), ("lr", 0.01), ("adam-lr", 0.002),
                        ("momentum", 0.98), ("beta1", 0.9), ("beta2", 0.98), ("eps", 1e-15), ("max-grad-norm", 1.0),
                        ("newton-schulz-eps", 1e-5)):
        p.add_argument(f"--{name}", type=float, default=value, help="as the program's key")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=" ")
    p.add_argument("--precision", choices=("f32", "bf16"), default="bf16", help="of activations and products")
    p.add_argument("--hybrid-norm", action="store_true", help="a norm after each branch")
    p.add_argument("--compile", action="store_true", help="torch.compile for blocks, softmax gradient and Adam's passes")
    a = p.parse_args(arguments)
    a.micro_batch = a.micro_batch or a.batch
    if a.batch % a.micro_batch or a.heads % a.kv_heads or a.head_dim % 2:
        p.error("--micro-batch has to divide --batch, --kv-heads --heads, and --head-dim to be even")
    if a.candidates > a.vocab or (a.candidates and a.batch > 32):
        p.error("--candidates are at most --vocab, and one set serves at most 32 windows")
    a.dtype = torch.bfloat16 if a.precision == "bf16" else torch.float32
    return a


# ---- Parameters: leaves of autograd that are parts of stacks, so that one pass updates all matrices of a shape.

class Stack:
    def __init__(self, group, name, value):
        self.group, self.name, self.value = group, name, value
        self.gradient = torch.zeros_like(value)
        self.state = [torch.zeros_like(value) for _ in range(1 if group == "muonh" else 2)]

    def leaf(self, index):
        leaf = self.value[index].data.requires_grad_()
        leaf.grad = self.gradient[index].data  # the backward pass adds to it in place
        return leaf


class Parameters:
    """Initial values as docs/model.md has them: Z/sqrt(fan in), Z/d for the embedding, gains 1."""

    def __init__(self, a):
        d, query, key = a.hidden, a.heads * a.head_dim, a.kv_heads * a.head_dim
        shapes = {"q": (query, d), "k": (key, d), "v": (key, d), "o": (d, query), "gate": (a.inner, d), "up": (a.inner, d),
                  "down": (d, a.inner)}
        gains = {"in": d, "q_norm": a.head_dim, "k_norm": a.head_dim, "mlp_in": d}
        if a.hybrid_norm:
            gains.update(out=d, mlp_out=d)
        members = {}  # by shape: (block, name)
        for layer in range(a.layers):
            for name, shape in shapes.items():
                members.setdefault(shape, []).append((layer, name))
        self.blocks = [{} for _ in range(a.layers)]
        self.stacks = []
        for shape, places in members.items():
            stack = self.add("muonh", "x".join(map(str, shape)), self.normal((len(places), *shape), shape[1] ** -0.5, a))
            for i, (layer, name) in enumerate(places):
                self.blocks[layer][name] = stack.leaf(i)
        flat = self.add("adam", "gains", torch.ones(a.layers * sum(gains.values()) + d, device=a.device))
        at = 0
        for block in self.blocks:
            for name, width in gains.items():
                block[name] = flat.leaf(slice(at, at + width))
                at += width
        self.final = flat.leaf(slice(at, at + d))
        self.embedding = self.add("adam", "embedding", self.normal((a.vocab, d), 1 / d, a)).leaf(slice(None))
        self.head = self.add("adamh", "head", self.normal((1, a.vocab, d), d ** -0.5, a)).leaf(0)

    @staticmethod
    def normal(shape, deviation, a):
        value = torch.empty(shape, device=a.device)
        return torch.nn.init.trunc_normal_(value, 0.0, deviation, -3 * deviation, 3 * deviation)

    def add(self, group, name, value):
        self.stacks.append(Stack(group, name, value))
        return self.stacks[-1]

    def count(self):
        return sum(stack.value.numel() for stack in self.stacks)


# ---- Forward. Functions of tensors alone: compiled once, they serve all blocks.

def rms(x, gain, eps):
    gain = gain.to(x.dtype)
    if hasattr(F, "rms_norm"):
        return F.rms_norm(x, (x.shape[-1],), gain, eps)
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * gain


def rope(x, cos, sin):
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def attend(q, k, v):
    """[windows, heads, S, D]; causal."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1 and GROUPED:
        return FUSED(q, k, v, is_causal=True, enable_gqa=True)
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if FUSED is not None:
        return FUSED(q, k, v, is_causal=True)
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(later, float("-inf")), -1).to(v.dtype) @ v


def block(x, w, cos, sin, head_dim, eps):
    windows, positions, _ = x.shape

    def linear(y, name):
        return F.linear(y, w[name].to(y.dtype))

    def heads(y):
        return y.view(windows, positions, -1, head_dim)

    y = rms(x, w["in"], eps)
    q = rope(rms(heads(linear(y, "q")), w["q_norm"], eps), cos, sin)
    k = rope(rms(heads(linear(y, "k")), w["k_norm"], eps), cos, sin)
    o = attend(q.transpose(1, 2), k.transpose(1, 2), heads(linear(y, "v")).transpose(1, 2))
    y = linear(o.transpose(1, 2).reshape(windows, positions, -1), "o")
    x = x + (rms(y, w["out"], eps) if "out" in w else y)
    y = rms(x, w["mlp_in"], eps)
    y = linear(F.silu(linear(y, "gate")) * linear(y, "up"), "down")
    return x + (rms(y, w["mlp_out"], eps) if "mlp_out" in w else y)


def softmax_gradient(logits, targets, z_loss):
    """Sum of losses and the gradient of that sum with respect to [rows, classes] logits, in the logits' type."""
    log_p = torch.log_softmax(logits, -1, dtype=torch.float32)
    at = targets[:, None]
    picked = log_p.gather(1, at)
    log_sum = logits.gather(1, at).float() - picked
    loss = (z_loss * log_sum.square() - picked).sum()
    grow = 1 + 2 * z_loss * log_sum
    if z_loss:
        gradient = (log_p.exp() * grow).to(logits.dtype)
    elif logits.dtype == torch.float32:
        gradient = log_p.exp()
    else:
        gradient = torch.exp(log_p, out=torch.empty_like(logits))  # rounds as it writes: no f32 copy in between
    return loss, gradient.scatter_(1, at, (picked.exp() * grow - 1).to(logits.dtype))


class LinearCrossEntropy(torch.autograd.Function):
    """Sum over positions of the loss of h W^T, times `scale`. Goes over chunks of positions; each chunk's gradients are taken while
    its logits exist, so that no product is done twice."""

    @staticmethod
    def forward(ctx, h, weight, targets, scale, z_loss, rows, gradient_of):
        w = weight.to(h.dtype)
        dh, dw = torch.empty_like(h), torch.zeros_like(weight)
        loss = torch.zeros((), device=h.device)
        for at in range(0, len(h), rows):
            part = h[at:at + rows]
            term, gradient = gradient_of(part @ w.T, targets[at:at + rows], z_loss)
            loss += term
            torch.mm(gradient, w, out=dh[at:at + rows])
            if h.dtype == weight.dtype:
                dw.addmm_(gradient.T, part)
            else:
                dw += gradient.T @ part
        ctx.save_for_backward(dh, dw)
        ctx.scale = scale
        return loss * scale

    @staticmethod
    def backward(ctx, grad):
        dh, dw = ctx.saved_tensors
        return dh * (grad * ctx.scale).to(dh.dtype), dw.mul_(grad * ctx.scale), None, None, None, None, None


class Model:
    def __init__(self, a):
        self.a, self.parameters = a, Parameters(a)
        angle = torch.outer(torch.arange(a.sequence), a.rope_theta ** (-torch.arange(0, a.head_dim, 2) / a.head_dim))
        self.cos, self.sin = (t[:, None, :].to(a.device, a.dtype) for t in (angle.cos(), angle.sin()))
        self.block, self.gradient_of = block, softmax_gradient
        if a.compile:
            self.block = torch.compile(block, dynamic=False)
            self.gradient_of = torch.compile(softmax_gradient, dynamic=False)

    def loss(self, ids, targets, candidates, scale):
        """ids and targets [windows, S]; candidates: None or P classes, of which `targets` are the numbers."""
        a, p = self.a, self.parameters
        x = F.embedding(ids, p.embedding).to(a.dtype)
        for w in p.blocks:
            x = self.block(x, w, self.cos, self.sin, a.head_dim, a.rms_norm_eps)
        h = rms(x, p.final, a.rms_norm_eps).reshape(-1, a.hidden)
        weight = p.head if candidates is None else p.head.index_select(0, candidates)
        rows = a.chunk_rows or 1 << int(math.log2(LOGITS_AT_ONCE // len(weight)))
        return LinearCrossEntropy.apply(h, weight, targets.reshape(-1), scale, a.z_loss, rows, self.gradient_of)

    def step(self, ids):
        """Gradients of the mean loss over ids [windows, S + 1], added up over micro-batches. Returns the loss, on the device."""
        a = self.a
        tokens, targets, candidates = ids[:, :-1], ids[:, 1:], None
        if a.candidates:
            candidates, targets = sample(targets, a)
        total = torch.zeros((), device=a.device)
        for at in range(0, a.batch, a.micro_batch):
            part = slice(at, at + a.micro_batch)
            loss = self.loss(tokens[part], targets[part], candidates, 1 / targets.numel())
            loss.backward()
            total += loss.detach()
        return total


def sample(targets, a):
    """P classes, ascending: the labels and others drawn at random. Returns them and the labels' numbers among them."""
    keys = torch.rand(a.vocab, device=targets.device)
    keys[targets.reshape(-1)] = -1.0
    candidates = keys.argsort()[:a.candidates].sort().values
    number = torch.zeros(a.vocab, dtype=torch.long, device=targets.device)
    number[candidates] = torch.arange(a.candidates, device=targets.device)
    return candidates, number[targets]


# ---- Optimizers. Nothing here waits for the device.

def length(x):
    """Frobenius norm of each matrix of a stack [n, rows, columns]."""
    return x.square().sum((-2, -1), keepdim=True, dtype=torch.float32).sqrt()


def orthogonalize(x, steps, eps, dtype):
    x = (x / (length(x) + eps)).to(dtype)
    tall = x.shape[-2] > x.shape[-1]
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = x.mT @ x if tall else x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, x, gram, beta=a) if tall else torch.baddbmm(x, gram, x, beta=a)
    return x


def adam_direction(m, v, gradient, correction1, correction2, beta1, beta2, eps):
    m.lerp_(gradient, 1 - beta1)
    v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    return (m / correction1) / ((v / correction2).sqrt() + eps)


class Optimizer:
    def __init__(self, stacks, a):
        self.stacks, self.a, self.t = stacks, a, 0
        self.direction = torch.compile(adam_direction, dynamic=False) if a.compile else adam_direction

    def keep_length(self, w, direction):
        r = length(w)
        w -= direction * (self.a.lr * r / length(direction).clamp_min(1e-10))
        w *= r / length(w).clamp_min(1e-10)

    @torch.no_grad()
    def step(self):
        a = self.a
        self.t += 1
        for group in ("muonh", "adamh", "adam"):
            stacks = [stack for stack in self.stacks if stack.group == group]
            norm = torch.stack([stack.gradient.square().sum() for stack in stacks]).sum().sqrt()
            for stack in stacks:
                stack.gradient *= (a.max_grad_norm / norm).clamp_max(1.0)
        correction = [torch.full((), 1 - beta ** self.t, device=a.device) for beta in (a.beta1, a.beta2)]
        for stack in self.stacks:
            if stack.group == "muonh":
                (momentum,) = stack.state
                momentum.mul_(a.momentum).add_(stack.gradient)
                ahead = torch.add(stack.gradient, momentum, alpha=a.momentum)
                self.keep_length(stack.value, orthogonalize(ahead, a.steps, a.newton_schulz_eps, a.dtype))
            else:
                direction = self.direction(*stack.state, stack.gradient, *correction, a.beta1, a.beta2, a.eps)
                if stack.group == "adamh":
                    self.keep_length(stack.value, direction)
                else:
                    stack.value.sub_(direction, alpha=a.adam_lr)
            stack.gradient.zero_()


# ---- Measuring

def make_batches(count, a):
    """[batch, S + 1] ids each. Batches of text name far fewer classes than there are, so that candidates have room."""
    weights = torch.arange(1, a.vocab + 1, dtype=torch.float64) ** -TEXT_EXPONENT
    below = (weights / weights.sum()).cumsum(0)
    draws = torch.rand(count, a.batch, a.sequence + 1, dtype=torch.float64)
    ids = torch.searchsorted(below, draws).clamp_max(a.vocab - 1)
    most = max(len(torch.unique(batch[:, 1:])) for batch in ids)
    if a.candidates and most > a.candidates:
        sys.exit(f"peer_torch.py: {most} classes are labels of a batch; --candidates {a.candidates} have no room for them")
    return ids.to(a.device)


def choose_attention(a):
    """Leaves on, of PyTorch's fused kernels for attention, the one that is faster at this shape. Returns its name."""
    if FUSED is None:
        return "plain"
    if a.device != "cuda":
        return "default"
    switches = {"flash": "enable_flash_sdp", "cudnn": "enable_cudnn_sdp", "efficient": "enable_mem_efficient_sdp",
                "math": "enable_math_sdp"}
    switches = {name: getattr(torch.backends.cuda, switch) for name, switch in switches.items()
                if hasattr(torch.backends.cuda, switch)}

    def only(chosen):
        for name, switch in switches.items():
            switch(name in chosen)

    def once(count):
        shape = (min(a.micro_batch, 8), a.sequence)
        q, k, v = (torch.randn(*shape, n, a.head_dim, device=a.device, dtype=a.dtype).transpose(1, 2).requires_grad_()
                   for n in (a.heads, a.kv_heads, a.kv_heads))
        out = torch.randn_like(q)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            attend(q, k, v).backward(out)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    times = {}
    for name in switches:
        if name == "math":
            continue
        only([name])
        try:
            once(1)
            times[name] = once(5)
        except RuntimeError:  # this kernel does not serve this shape, type or device
            continue
    chosen = min(times, key=times.get) if times else None
    only([chosen] if chosen else switches)
    return chosen or "default"


def measure(a):
    cuda = a.device == "cuda"
    torch.manual_seed(a.seed)
    model = Model(a)
    optimizer = Optimizer(model.parameters.stacks, a)
    batches = make_batches(min(a.warmup + a.repetitions, 4), a)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    marks, losses = [], []

    def mark():
        if cuda:  # the host runs ahead; the device keeps the time
            marks.append(torch.cuda.Event(enable_timing=True))
            marks[-1].record()
        else:
            marks.append(time.perf_counter())

    for i in range(a.warmup + a.repetitions):
        if i == a.warmup:
            if cuda:
                torch.cuda.synchronize()
            mark()
        losses.append(model.step(batches[i % len(batches)]))
        optimizer.step()
        if i >= a.warmup:
            mark()
    if cuda:
        torch.cuda.synchronize()
    times = [x.elapsed_time(y) if cuda else (y - x) * 1e3 for x, y in zip(marks, marks[1:])]
    losses = [loss.item() for loss in losses]
    if not all(map(math.isfinite, losses)):
        sys.exit(f"peer_torch.py: losses {losses} are not finite")
    step_ms = statistics.median(times)
    peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {"tokens_per_second": round(a.batch * a.sequence / step_ms * 1e3, 1), "step_ms": round(step_ms, 3),
            "peak_gib": round(peak / 2 ** 30, 3), "first_loss": losses[0], "last_loss": losses[-1],
            "parameters": model.parameters.count(), "candidates": a.candidates or a.vocab, "batch_sequences": a.batch,
            "micro_batch_sequences": a.micro_batch, "precision": a.precision, "device": a.device, "compiled": a.compile,
            "torch": torch.__version__, "threads": torch.get_num_threads()}


def main():
    a = parse()
    if a.threads:
        torch.set_num_threads(a.threads)
    attention = choose_attention(a)
    while True:
        try:
            result = measure(a)
            break
        except torch.cuda.OutOfMemoryError:
            if a.micro_batch % 2:
                raise
        a.micro_batch //= 2
        torch.cuda.empty_cache()
    print(json.dumps({**result, "attention": attention}))


if __name__ == "__main__":
    main()
