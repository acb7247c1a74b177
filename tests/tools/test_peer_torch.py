"""Tests of tools/peer_torch.py: the peer does the work it is timed for. 77 (skipped) where PyTorch is not installed."""

import contextlib
import io
import json
import math
import pathlib
import sys
import unittest

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("skipped: this Python has no torch")
    sys.exit(77)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import peer_torch  # noqa: E402

TINY = ["--hidden", "32", "--inner", "64", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--vocab", "257",
        "--sequence", "16", "--batch", "4", "--hybrid-norm", "--precision", "f32"]


def tiny(*more):
    torch.manual_seed(1)
    a = peer_torch.parse([*TINY, *more])
    return a, peer_torch.Model(a)


class Peer(unittest.TestCase):
    def test_loss_starts_at_ln_v_and_falls(self):
        for more, classes in (((), 257), (("--precision", "bf16"), 257), (("--candidates", "128"), 128)):
            a, model = tiny(*more)
            optimizer = peer_torch.Optimizer(model.parameters.stacks, a)
            ids = peer_torch.make_batches(1, a)[0]
            losses = []
            for _ in range(8):
                losses.append(model.step(ids).item())
                optimizer.step()
            self.assertLess(abs(losses[0] - math.log(classes)), 1.0)
            self.assertLess(losses[-1], losses[0] - 0.5, losses)

    def test_chunks_and_micro_batches_change_no_gradient(self):
        a, model = tiny("--chunk-rows", "64", "--z-loss", "0.01")
        ids = peer_torch.make_batches(1, a)[0]
        whole = model.step(ids).item()
        expected = [stack.gradient.clone() for stack in model.parameters.stacks]
        a, model = tiny("--chunk-rows", "5", "--z-loss", "0.01", "--micro-batch", "2")
        self.assertLess(abs(model.step(ids).item() - whole), 1e-5)
        for stack, gradient in zip(model.parameters.stacks, expected):
            # Sums in another order: some 2^-24 of the largest element.
            self.assertTrue(torch.allclose(stack.gradient, gradient, rtol=0, atol=1e-5 * gradient.abs().max().item()), stack.name)

    def test_head_is_the_cross_entropy_with_its_z_loss(self):
        # In f32 sums in another order; in bf16 some roundings by 2^-8 of gradients below 3.
        for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
            torch.manual_seed(2)
            h = torch.randn(11, 8).to(dtype).requires_grad_()
            w = torch.randn(23, 8).to(dtype).float().requires_grad_()
            targets = torch.randint(0, 23, (11,))
            peer_torch.LinearCrossEntropy.apply(h, w, targets, 0.25, 0.1, 4, peer_torch.softmax_gradient).backward()
            got = h.grad.float(), w.grad.clone()
            h, w = (t.detach().float().requires_grad_() for t in (h, w))
            logits = h @ w.T
            loss = F.cross_entropy(logits, targets, reduction="sum") + 0.1 * torch.logsumexp(logits, -1).square().sum()
            (0.25 * loss).backward()
            for mine, reference in zip(got, (h.grad, w.grad)):
                self.assertTrue(torch.allclose(mine, reference, rtol=0, atol=bound), (mine - reference).abs().max())

    def test_bf16_gradient_of_logits(self):
        torch.manual_seed(3)
        logits, targets = torch.randn(7, 19).bfloat16(), torch.arange(7)
        expected = torch.softmax(logits.float(), -1) - F.one_hot(targets, 19)
        _, gradient = peer_torch.softmax_gradient(logits, targets, 0.0)
        self.assertEqual(gradient.dtype, torch.bfloat16)
        # One rounding to 8 bits of values below 1.
        self.assertTrue(torch.allclose(gradient.float(), expected, rtol=2 ** -8, atol=1e-6))

    def test_candidates_hold_every_label_once(self):
        a, _ = tiny("--candidates", "64")
        targets = torch.tensor([[5, 9, 5, 200], [256, 0, 9, 31]])
        candidates, numbers = peer_torch.sample(targets, a)
        self.assertEqual(candidates.tolist(), sorted(set(candidates.tolist())))
        self.assertEqual(len(candidates), 64)
        self.assertTrue(torch.equal(candidates[numbers], targets))

    def test_batch_with_too_many_classes_is_refused(self):
        a, _ = tiny("--candidates", "4")
        with self.assertRaisesRegex(SystemExit, "have no room"):
            peer_torch.make_batches(1, a)

    def test_matrices_and_head_keep_their_norms(self):
        a, model = tiny("--lr", "0.1")
        stacks = [stack for stack in model.parameters.stacks if stack.group != "adam"]
        before = [(stack.value.clone(), peer_torch.length(stack.value)) for stack in stacks]
        optimizer = peer_torch.Optimizer(model.parameters.stacks, a)
        model.step(peer_torch.make_batches(1, a)[0])
        optimizer.step()
        for stack, (value, norm) in zip(stacks, before):
            self.assertTrue(torch.allclose(peer_torch.length(stack.value), norm, rtol=1e-5), stack.name)
            moved = peer_torch.length(stack.value - value) / norm
            # A step of lr R along the direction, drawn back to the sphere.
            self.assertTrue(((moved > 0.08) & (moved < 0.12)).all(), (stack.name, moved))

    def test_newton_schulz_brings_singular_values_near_one(self):
        torch.manual_seed(4)
        for shape in ((3, 12, 30), (3, 30, 12)):
            values = torch.linalg.svdvals(peer_torch.orthogonalize(torch.randn(shape), 5, 1e-5, torch.float32))
            self.assertTrue(((values > 0.6) & (values < 1.3)).all(), values)  # what these coefficients lead to

    def test_fused_attention_is_the_plain_one(self):
        if peer_torch.FUSED is None:
            self.skipTest("this PyTorch has no fused attention")
        q, k, v = (torch.randn(2, n, 16, 8) for n in (4, 2, 2))
        fused = peer_torch.attend(q, k, v)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = (q @ k.mT / math.sqrt(8)).masked_fill(torch.ones(16, 16, dtype=torch.bool).triu(1), float("-inf"))
        self.assertTrue(torch.allclose(fused, torch.softmax(scores, -1) @ v, atol=1e-5))

    def test_prints_one_json_line(self):
        out, arguments = io.StringIO(), sys.argv
        sys.argv = ["peer_torch.py", *TINY, "--warmup", "1", "--repetitions", "1"]
        try:
            with contextlib.redirect_stdout(out):
                peer_torch.main()
        finally:
            sys.argv = arguments
        result = json.loads(out.getvalue())
        self.assertGreater(result["tokens_per_second"], 0)
        # Embedding and head, seven matrices a block, gains.
        self.assertEqual(result["parameters"], 2 * 257 * 32 + 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 64 + 4 * 32 + 2 * 8) + 32)


if __name__ == "__main__":
    unittest.main()
