"""Which documents are trained on and which are held out; caps on a source's share; n-gram overlap between the two."""

HELD_OUT_MODULUS = 50  # in-domain held-out: id mod 50 = 0


def size(document):
    return len(document.text.encode())


def is_held_out(document):
    return document.number % HELD_OUT_MODULUS == 0


def first_bytes(ordered, limit):
    """The documents of the list, in order, that fit into `limit` bytes; one that does not fit any more is passed over (at
    least one is taken). Returns them and the rest."""
    total, taken, rest = 0, [], []
    for document in ordered:
        bytes_ = size(document)
        if total + bytes_ <= limit:
            total += bytes_
            taken.append(document)
        else:
            rest.append(document)
    return (taken, rest) if taken or not ordered else ([ordered[0]], ordered[1:])


def held_out_sets(groups, set_bytes, domain_groups):
    """`groups`: list of (source, documents). Returns ({set: {"val": [...], "test": [...]}}, {source name: training
    documents}). A set is ordered by document id: its first `set_bytes` are val, the next are test."""
    pools, training = {}, {}
    for source, documents in groups:
        if source.held_out:
            pools.setdefault(source.held_out, []).extend(documents)
            continue
        name = "in_domain_" + domain_groups.get(source.domain, source.domain)
        for document in documents:
            if source.in_domain and is_held_out(document):
                pools.setdefault(name, []).append(document)
            else:
                training.setdefault(source.name, []).append(document)
    sets = {}
    for name in sorted(pools):
        val, rest = first_bytes(sorted(pools[name], key=lambda document: document.id), set_bytes)
        test, _ = first_bytes(rest, set_bytes)
        sets[name] = {"val": val, "test": test}
    return sets, training


def capped_total(sizes, shares):
    """The largest total T with T = sum of min(size, share * T). Shares that cannot fill a whole are widened together."""
    reach = sum(shares[name] for name in sizes)
    widen = 1.0 if reach > 1.0 else 1.01 / reach
    total = float(sum(sizes.values()))
    while True:
        smaller = sum(min(bytes_, shares[name] * widen * total) for name, bytes_ in sizes.items())
        if total - smaller < 1.0:
            return total, widen
        total = smaller


def apply_caps(training, sources, default_share, group_shares):
    """Drops documents of sources (or cap groups) above their share of the training text: those with the highest ids, so
    that what stays is an arbitrary but stable sample. Returns what stays, in its order."""
    group_of = {source.name: source.cap_group or source.name for source in sources}
    sizes = {}
    for name, documents in training.items():
        sizes[group_of[name]] = sizes.get(group_of[name], 0) + sum(map(size, documents))
    if not sizes:
        return training
    shares = {group: group_shares.get(group, default_share) for group in sizes}
    total, widen = capped_total(sizes, shares)
    kept_ids = set()
    for group, bytes_ in sizes.items():
        members = [document for name, documents in training.items() if group_of[name] == group for document in documents]
        allowed = shares[group] * widen * total
        if bytes_ > allowed:
            members, _ = first_bytes(sorted(members, key=lambda document: document.id), allowed)
        kept_ids.update(document.id for document in members)
    return {name: [document for document in documents if document.id in kept_ids] for name, documents in training.items()}


def ngrams(text, n=13):
    words = text.split()
    return zip(*(words[start:] for start in range(n)))


def overlap_shares(sets, training, per_set=5000, n=13):
    """For each set the share of its val 13-grams (a sample, evenly spaced) that occur in the training text."""
    samples, wanted = {}, set()
    for name, parts in sets.items():
        grams = [gram for document in parts["val"] for gram in ngrams(document.text, n)]
        step = max(1, -(-len(grams) // per_set))
        samples[name] = grams[::step]
        wanted.update(samples[name])
    found = set()
    for documents in training.values():
        for document in documents:
            found |= wanted.intersection(ngrams(document.text, n))
    return {name: round(sum(gram in found for gram in grams) / len(grams), 4) if grams else 0.0
            for name, grams in samples.items()}
