#!/bin/bash
# overtok data shrink as a person calls it: the result equals tokenizing with the truncated
# tokenizer, and mistakes are named. Usage: shrink_command_line_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/command_line.sh"
content() {
  "$program" data info "$1" | grep 'content hash'
}

for i in $(seq 1 400); do
  echo "{\"text\": \"document number $i of many, counted $((i * i)) times; caf\\u00e9 reading\"}"
done > part.jsonl
succeeds "train" "$program" tokenizer train --vocab-size 320 --out big.json part.jsonl
succeeds "tokenize" "$program" tokenize --tokenizer big.json --out big part.jsonl
succeeds "shrink" "$program" data shrink --tokenizer big.json --vocab-size 280 --check --out small big
says "all 400 documents equal the encoding of their text"
says "of a vocabulary of 282"
succeeds "truncate" "$program" tokenizer truncate --in big.json --vocab-size 280 --out cut.json
cmp cut.json small/tokenizer.json || fail "the tokenizers differ"
succeeds "tokenize anew" "$program" tokenize --tokenizer cut.json --out again part.jsonl
[ "$(content small)" = "$(content again)" ] || fail "the shards differ"
[ "$(content small)" != "$(content big)" ] || fail "nothing was converted"
succeeds "both at once" "$program" data info small again
succeeds "verify" "$program" data verify small

refuses "too many tokens" "cannot keep 319 tokens of big.json; expected 256 (the bytes) to 318" \
  "$program" data shrink --tokenizer big.json --vocab-size 319 --out x big
refuses "too few tokens" "expected 256" \
  "$program" data shrink --tokenizer big.json --vocab-size 255 --out x big
refuses "another tokenizer" "with another tokenizer" \
  "$program" data shrink --tokenizer cut.json --vocab-size 260 --out x big
refuses "bytes" "has no merges" \
  "$program" data shrink --tokenizer bytes --vocab-size 256 --out x big
refuses "used output" "exists already" \
  "$program" data shrink --tokenizer big.json --vocab-size 280 --out small big
refuses "missing size" "--vocab-size" "$program" data shrink --tokenizer big.json --out x big
[ -e x ] || [ -e x.partial ] && fail "a refused run left something behind"

[ $failures -eq 0 ] && echo "all passed"
exit $((failures > 0))
