"""Initial weights against an implementation of its own: standard library only, nothing of overtok.

Writes Qwen3 checkpoints (one file, and three with an index; F32, BF16, F16 and F64 mixed), lets
initial_weights_probe read the parts of every rank, and compares them bit by bit with parts that
are cut here from the whole. Then reads the files that overtok wrote.
"""

import argparse
import json
import random
import struct
import subprocess
import tempfile
from pathlib import Path

V, D, M, L, HEAD = 101, 48, 56, 2, 8
BLOCK = 64


def shapes(heads, kv_heads, tied):
    """Our name, name in the file, shape."""
    rows = [("embed.weight", "model.embed_tokens.weight", (V, D))]
    for i in range(L):
        ours, theirs = f"layers.{i}.", f"model.layers.{i}."
        rows += [
            (ours + "attn_in_norm.weight", theirs + "input_layernorm.weight", (D,)),
            (ours + "attn.q_proj.weight", theirs + "self_attn.q_proj.weight", (heads * HEAD, D)),
            (ours + "attn.k_proj.weight", theirs + "self_attn.k_proj.weight", (kv_heads * HEAD, D)),
            (ours + "attn.v_proj.weight", theirs + "self_attn.v_proj.weight", (kv_heads * HEAD, D)),
            (ours + "attn.q_norm.weight", theirs + "self_attn.q_norm.weight", (HEAD,)),
            (ours + "attn.k_norm.weight", theirs + "self_attn.k_norm.weight", (HEAD,)),
            (ours + "attn.o_proj.weight", theirs + "self_attn.o_proj.weight", (D, heads * HEAD)),
            (ours + "mlp_in_norm.weight", theirs + "post_attention_layernorm.weight", (D,)),
            (ours + "mlp.gate_proj.weight", theirs + "mlp.gate_proj.weight", (M, D)),
            (ours + "mlp.up_proj.weight", theirs + "mlp.up_proj.weight", (M, D)),
            (ours + "mlp.down_proj.weight", theirs + "mlp.down_proj.weight", (D, M)),
        ]
    rows.append(("final_norm.weight", "model.norm.weight", (D,)))
    if not tied:
        rows.append(("lm_head.weight", "lm_head.weight", (V, D)))
    return rows


def pack(values, dtype):
    if dtype == "BF16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack("<%d%s" % (len(values), {"F32": "f", "F64": "d", "F16": "e"}[dtype]), *values)


def write_file(path, tensors):
    """tensors: name -> (dtype, shape, values)."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, values) in tensors.items():
        stored = pack(values, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + len(stored)],
        }
        data += stored
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_file(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    assert length % 8 == 0, "the data are not aligned"
    header = json.loads(raw[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + at for at in entry["data_offsets"])
        assert entry["dtype"] == "BF16", name
        words = struct.unpack("<%dH" % ((end - begin) // 2), raw[begin:end])
        tensors[name] = [struct.unpack("<f", struct.pack("<I", w << 16))[0] for w in words]
    return tensors


def part_of(name, shape, values, tensor, rank, kv_heads):
    """The rank's part, from indices alone."""
    if len(shape) == 1 or tensor == 1:
        return values
    rows, columns = range(shape[0]), range(shape[1])
    if name in ("embed.weight", "lm_head.weight"):
        rows = [r for r in rows if r // BLOCK % tensor == rank]
    elif "q_proj" in name:
        each = shape[0] // tensor
        rows = range(rank * each, (rank + 1) * each)
    elif "k_proj" in name or "v_proj" in name:
        parts = min(tensor, kv_heads)
        part, each = rank // (tensor // parts), shape[0] // parts
        rows = range(part * each, (part + 1) * each)
    elif "gate_proj" in name or "up_proj" in name:
        rows = range(shape[0] * rank // tensor, shape[0] * (rank + 1) // tensor)
    else:  # o_proj, down_proj
        columns = range(shape[1] * rank // tensor, shape[1] * (rank + 1) // tensor)
    return [values[r * shape[1] + c] for r in rows for c in columns]


def check(probe, tensor, heads, kv_heads, tied, files, seed):
    draw = random.Random(seed)
    rows = shapes(heads, kv_heads, tied)
    dtypes = {theirs: draw.choice(["F32", "BF16", "F16", "F64"]) for _, theirs, _ in rows}
    whole = {}
    for ours, _, shape in rows:
        count = 1
        for size in shape:
            count *= size
        # 8 significant bits: exact in every type.
        whole[ours] = [draw.randint(-255, 255) / 64 for _ in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        groups = [{} for _ in range(files)]
        for i, (ours, theirs, shape) in enumerate(rows):
            groups[i % files][theirs] = (dtypes[theirs], shape, whole[ours])
        if files == 1:
            write_file(folder / "model.safetensors", groups[0])
        else:
            names = [f"model-{i + 1:05}-of-{files:05}.safetensors" for i in range(files)]
            for name, group in zip(names, groups):
                write_file(folder / name, group)
            index = {"metadata": {}, "weight_map": {t: n for n, g in zip(names, groups) for t in g}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        config = {
            "model_type": "qwen3", "vocab_size": V, "hidden_size": D, "intermediate_size": M,
            "num_hidden_layers": L, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "head_dim": HEAD, "rms_norm_eps": 1e-6, "tie_word_embeddings": tied,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
        }
        (folder / "config.json").write_text(json.dumps(config))
        out = folder / "out"
        numbers = [tensor, V, D, M, L, heads, kv_heads, HEAD, int(tied)]
        subprocess.run([probe, str(folder), str(out), *map(str, numbers)], check=True)

        width = {"F32": 4, "F64": 8, "BF16": 2, "F16": 2}
        for rank in range(tensor):
            expected_bytes = 0
            for ours, theirs, shape in rows:
                expected = part_of(ours, shape, whole[ours], tensor, rank, kv_heads)
                expected_bytes += len(expected) * width[dtypes[theirs]]
                found = (out / str(rank) / ours).read_bytes()
                assert found == pack(expected, "F32"), f"{ours} of rank {rank} of {tensor}"
            read = int((out / str(rank) / "bytes_read").read_text())
            assert read == expected_bytes, f"rank {rank} read {read}, its part has {expected_bytes}"
        if tensor == 1:
            check_written(out / "written", rows, whole)


def check_written(folder, rows, whole):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    placed = index["weight_map"]
    assert sorted(placed) == sorted(theirs for _, theirs, _ in rows)
    assert index["metadata"]["total_size"] == sum(2 * len(v) for v in whole.values())
    files = {name: read_file(folder / name) for name in set(placed.values())}
    assert len(files) > 1
    assert sum(map(len, files.values())) == len(rows)
    for ours, theirs, _ in rows:
        assert files[placed[theirs]][theirs] == whole[ours], theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", required=True)
    probe = parser.parse_args().probe
    cases = [(1, 4, 1, False, 1), (2, 4, 1, True, 3), (4, 4, 1, False, 3), (4, 4, 2, False, 1),
             (3, 6, 3, True, 1)]
    for seed, (tensor, heads, kv_heads, tied, files) in enumerate(cases):
        check(probe, tensor, heads, kv_heads, tied, files, seed)
    print("parts of", len(cases), "checkpoints agree")


if __name__ == "__main__":
    main()
