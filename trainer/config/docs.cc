#include "trainer/config/docs.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "trainer/config/schema.h"

namespace overtok {
namespace {

constexpr char kIntroduction[] = R"(# Configuration

This page is written by `overtok config docs` from the same table that reads configurations.
`overtok config show CONFIG [key.path=value ...]` prints what a configuration comes to.

## Files and overrides

A configuration is one YAML document. `base:` names a file or a list of files that it builds on, by
paths relative to the file that names them; of several, later ones lie over earlier ones. Mappings
merge, everything else replaces, and `null` in the place of a section removes what was inherited
there. `--arm FILE`, as often as needed, lays further files over the configuration (`configs/arms`
has the methods, which fit every recipe): the same as a `base:` list that ends with them.
`key.path=value` on the command line lies over the files; the value is any YAML, lists
`[a, b]` and mappings `{a: 1}` included, and of two values for one key the later one holds.

The arms of this project, each for itself or several over each other:

| `configs/arms/` | what it adds |
|---|---|
| `ss.yaml` | sampled softmax, published stages for 128,256 classes |
| `oe.yaml` | hashed 2-gram and 3-gram input tables |
| `head2_only.yaml` | a second token head |
| `ot_h.yaml`, `ot_h_ss.yaml` | input tables and a second token head; with sampled softmax |
| `ot_2.yaml`, `ot_2_ss.yaml` | input tables and a hashed 2-gram head; main head sampled as well |
| `focal.yaml` | focal loss, gamma 1 |
| `small_tables.yaml` | as `ot_h.yaml`, with 1.28M rows |
| `repeat_2_4.yaml` | 2.4 passes over less data, the same steps |
| `frozen.yaml` | as `ot_h.yaml` over repeated data, tables frozen from the second pass on |

Four sections may be `null`, which is their default and turns off what they describe:
`model.ngram_embedding`, `model.second_token_head`, `model.ngram_head` and `loss.sampled_softmax`.
A mapping turns one on, also an empty one (`{}`: every key has its default), and a later `null`
turns it off again. A key of such a section given by its full name on the command line turns it on.

Keys that exclude each other (the horizons; `data.passes` and `data.unique_tokens`;
`optimizer.tables.freeze_after_passes` and `freeze_step`) replace each other across layers:
`train.tokens=1B` on the command line takes the place of `train.steps` in a file. Inside one layer,
two of them are an error.

Paths under `data`, `train`, `eval` and `checkpoint` are relative to the working directory.

## What is refused

Unknown keys (with the key that was probably meant), duplicate keys, merge keys (`<<`), several
documents in a file, and values of another type. Each error names file and line or the command line,
key, value and what was expected, and all mistakes are reported at once.

An option that can have no effect is an error when it stands in the same file as what disables it,
or on the command line, and also in the configuration's own file when nothing anywhere enables it.
Inherited from a base, it is silently inactive.

Some settings are valid and probably not meant; `overtok train` and `overtok plan` warn of them: a
last stage that ends at 1, so that the full softmax is never trained; another pass over the data
that begins within 3 % of the run's steps from the end of a stage; more parameters in the input
tables than tokens in the data that a run repeats.

## Values

- Numbers: `4096`, `4_096`, `0.02`, `1e-3`, `1e9`, and with a suffix `K`, `M`, `B`, `T` for
  thousands, millions, billions (10^9), trillions (10^12): `10B`. `1.5K` is a whole number. `010`,
  `0x10`, `nan` and `inf` are refused.
- Booleans: `true` and `false`, nothing else.
- Texts that look like numbers or booleans need quotes.
- `auto` is replaced by what the table says; the resolved configuration shows by what. Only that of
  `optimizer.tables.memory` stays: a run's GPU decides.

## The resolved configuration

Every run stores its configuration with every default and every `auto` written out, as
`config.yaml` in the run directory; keys without effect are left out. It loads like any other
configuration and means the same run.

## The length of a run

Exactly one of four keys states it, and the number of steps is rounded down:

| key | steps |
|---|---|
| `train.steps` | as given |
| `train.tokens` | tokens / (batch_sequences * sequence_length) |
| `train.passes_over_data` | passes * windows / batch_sequences; known once the corpus is open |
| `train.tokens_per_parameter` | ratio * parameters / (batch_sequences * sequence_length) |

Parameters are token embedding, matrices, norm gains and head. Hashed tables, their projections and
further heads do not count, so that a run with a method is as long as its baseline. A published
budget in tokens per *nominal* parameter (20 for each of "130M") is therefore better given as
`train.tokens`.

## The learning rate

The rate of step t = 0 ... T - 1 is the group's rate times a multiplier, with r = `min_lr_ratio`
and w = `warmup_steps`:

- t < w: t / w
- linear, D = int(`decay` * T): r + (1 - r) * clamp(1 - (t - (T - D)) / D, 0, 1)
- cosine: r + (1 - r) * (1 + cos(pi * (t - w) / (T - w))) / 2

It depends on nothing but the configuration and t, so a resumed run continues it exactly.

## Counting operations

With V vocabulary, d hidden, m MLP inner, L layers, H query heads, K key/value heads of width D, and
S tokens in a window:

- Parameters of the blocks' matrices: N = L * (2 d H D + 2 d K D + 3 d m). **6ND** is 6 * N * tokens,
  repeated tokens counted each time.
- `throughput/total_gflops` counts 3 * tokens * (L * (6 d m + 2 d (H D + 2 K D) + 2 d^2 + 4 S d +
  3 S H) + 2 d V): attention over the whole window, as levanter counts it.
- The causal count is 3 * tokens * (2 N + L * (S + 1) / 2 * (4 H D + 3 H) + 2 d V): a position
  attends to itself and what precedes it.

Both are counts of the baseline and stay what they are whatever the methods add or save; 6ND does so
too. `overtok plan` also prints what a run with its methods computes, on top of the causal count:

- sampled softmax: 2 d P instead of 2 d V in a stage of P candidates, averaged over the run's steps;
- input tables: 2 d w for each table, w its width. Reading the rows costs no operations;
- second token head: 2 d d, and its logits as the main head's, sampled or not;
- n-gram heads: 2 d d + 2 d w + 2 w C each, for C = min(classes, block_sequences * S) candidates of
  a block: states are brought to the tables' width, and scored there.

## Bytes of hashed tables

`overtok plan` lists every table with its bytes. With U = min(rows, tokens of a step) rows that a
step can touch at most, T tokens of a step, v and s the bytes of a row's values and state, and w its
width, a step reads and writes at most 2 U (2 (v + s) + 4 w) + T v bytes: bringing rows up to date
and the update each read and write values and state, gradients are written and read, and every
position reads a row. Where silent steps change nothing (adagrad and sgd without untouched_decay),
rows need not be brought up to date and 2 (v + s) is (v + s). Text repeats its n-grams, so that
runs touch fewer rows than that.

## Passes and freezing

A pass is the order of the data once: the batches that `data.passes` or `data.unique_tokens` keep,
or else windows / batch_sequences batches. Pass p (from 0) begins at step ceil(p * batches of a
pass); it is the first step all of whose windows belong to it. `freeze_after_passes: p` freezes the
input tables from there on. It becomes `freeze_step` when the configuration is loaded, or once the
corpus is open where only the corpus says how long a pass is.

## Keys

)";

constexpr struct {
  const char* name;
  const char* text;
} kSections[] = {
    {"model", "Shape of the model."},
    {"loss", "The training loss. Evaluation always uses the plain cross-entropy."},
    {"optimizer",
     "Parameters belong to three groups: muonh (matrices of the blocks, projections), adamh (heads "
     "over the vocabulary) and adam (token embedding, norm gains, hashed tables). There is no "
     "weight "
     "decay."},
    {"data", "What is read, and in which order."},
    {"train", "Length, batch and machine."},
    {"eval", "Evaluation inside the run and by `overtok eval`."},
    {"checkpoint", "Where a run lives and when it is saved."},
    {"parallel", "How ranks share the work."},
};

}  // namespace

std::string ConfigurationPage() {
  std::string page = kIntroduction;
  for (const auto& section : kSections) {
    absl::StrAppend(&page, "### ", section.name, "\n\n", section.text, "\n\n",
                    "| key | value | default | meaning |\n|---|---|---|---|\n");
    const std::string prefix = absl::StrCat(section.name, ".");
    const OptionalSection* optional = nullptr;  // the last one that has a row
    for (const Key& key : ConfigKeys()) {
      if (key.name.rfind(prefix, 0) != 0) continue;
      if (const OptionalSection* of = OptionalSectionOf(key.name);
          of != nullptr && of != optional) {
        absl::StrAppend(&page, "| `", of->name,
                        "` | mapping of the keys below, or null | `null` | ", of->doc, " |\n");
        optional = of;
      }
      std::string meaning = key.doc;
      if (key.takes_auto) absl::StrAppend(&meaning, " auto: ", key.auto_doc, ".");
      const std::string type = absl::StrReplaceAll(key.type, {{"|", "\\|"}});
      const std::string initial =
          key.initial.empty() ? "has to be given" : absl::StrCat("`", key.initial, "`");
      absl::StrAppend(&page, "| `", key.name, "` | ", type, " | ", initial, " | ", meaning, " |\n");
    }
    page += "\n";
  }
  page.pop_back();
  return page;
}

}  // namespace overtok
