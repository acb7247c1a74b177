#include "trainer/config/strict_yaml.h"

#include <string>

#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

TEST(StrictYaml, KeepsTextAndLines) {
  const auto tree = ParseYaml("a: 010\nb:\n  c: [1, 'x']\n  d: ~\n", "f.yaml");
  OT_ASSERT_OK(tree);
  EXPECT_EQ(tree->At("a")->text, "010");
  EXPECT_EQ(tree->At("a")->origin.ToString(), "f.yaml:1");
  EXPECT_EQ(tree->At("b")->origin.ToString(), "f.yaml:2");  // the key's line, not its first entry's
  const YamlValue* list = tree->At("b.c");
  ASSERT_EQ(list->children.size(), 2u);
  EXPECT_FALSE(list->children[0].quoted);
  EXPECT_TRUE(list->children[1].quoted);
  EXPECT_EQ(tree->At("b.d")->kind, YamlValue::Kind::kNull);
  EXPECT_EQ(tree->At("b.d")->origin.line, 4);
  EXPECT_EQ(tree->At("b.e"), nullptr);
}

TEST(StrictYaml, RefusesWhatYamlWouldLetPass) {
  OT_EXPECT_ERROR(ParseYaml("a: 1\nb: 2\na: 3\n", "f.yaml"),
                  "f.yaml:3: duplicate key a, already given at f.yaml:1");
  OT_EXPECT_ERROR(ParseYaml("a: {x: 1, x: 1}\n", "f.yaml"), "f.yaml:1: duplicate key x");
  OT_EXPECT_ERROR(ParseYaml("a: &x {y: 1}\nb:\n  <<: *x\n", "f.yaml"), "f.yaml:3: merge keys (<<)");
  OT_EXPECT_ERROR(ParseYaml("a: 1\n---\nb: 2\n", "f.yaml"), "f.yaml:2: a second YAML document");
  OT_EXPECT_ERROR(ParseYaml("? [a, b]\n: 1\n", "f.yaml"), "a key must be plain text");
  OT_EXPECT_ERROR(ParseYaml("a: !!int 3\n", "f.yaml"), "f.yaml:1: the tag");
  OT_EXPECT_ERROR(ParseYaml("", "f.yaml"), "f.yaml: holds no keys");
  OT_EXPECT_ERROR(ParseYaml("# only this\n", "f.yaml"), "f.yaml: holds no keys");
  OT_EXPECT_ERROR(ParseYaml("- 1\n", "f.yaml"), "is a mapping of keys");
}

TEST(StrictYaml, BrokenTextIsAnErrorWithItsLine) {
  OT_EXPECT_ERROR(ParseYaml("a: 1\nb: [1, 2\n", "f.yaml"), "not valid YAML");
  OT_EXPECT_ERROR(ParseYaml("a: 1\n  b: 2\n", "f.yaml"), "f.yaml:2: not valid YAML");
  OT_EXPECT_ERROR(ParseYaml("a: *nobody\n", "f.yaml"), "f.yaml:1: not valid YAML");
  OT_EXPECT_ERROR(ParseYaml(std::string(20000, '['), "f.yaml"), "f.yaml:1: ");
}

TEST(StrictYaml, NothingIsDroppedBehindTheDocument) {
  OT_EXPECT_ERROR(ParseYaml("a: 1\n]\nb: 2\n", "f.yaml"), "f.yaml:2: ");
  OT_EXPECT_ERROR(ParseYaml("a: 1\n}\n", "f.yaml"), "f.yaml:2: ");
  OT_EXPECT_ERROR(ParseYaml("a: 1\n%b: 2\n", "f.yaml"), "f.yaml:2: directives");
  OT_EXPECT_ERROR(ParseYaml(absl::string_view("a: 1\n\0b: 2\n", 12), "f.yaml"),
                  "f.yaml:2: the control character 0");
  OT_EXPECT_ERROR(ParseYaml("{a: 1} b", "f.yaml"), "f.yaml:1: ");
  OT_EXPECT_ERROR(ParseOverride("a={x: 1}]"), "command line: ");
  OT_ASSERT_OK(ParseYaml("---\na: 1\n...\n", "f.yaml"));
  OT_ASSERT_OK(ParseYaml("a: 1\r\nb: 2\r\n", "f.yaml"));
}

TEST(StrictYaml, AliasesCannotExplode) {
  std::string text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string last = absl::StrCat("*a", i - 1);
    absl::StrAppend(&text, "a", i, ": &a", i, " [");
    for (int j = 0; j < 9; ++j) absl::StrAppend(&text, last, ", ");
    absl::StrAppend(&text, last, "]\n");
  }
  OT_EXPECT_ERROR(ParseYaml(text, "f.yaml"), "nested too deeply");
  OT_EXPECT_ERROR(ParseYaml("a: &a [*a]\n", "f.yaml"), "f.yaml:1");
}

TEST(StrictYaml, Overrides) {
  auto tree = ParseOverride("a.b.c=[1, {d: 2}]");
  OT_ASSERT_OK(tree);
  const YamlValue* value = tree->At("a.b.c");
  ASSERT_NE(value, nullptr);
  EXPECT_EQ(value->kind, YamlValue::Kind::kList);
  EXPECT_EQ(value->origin.ToString(), "command line");
  EXPECT_TRUE(value->origin.command_line());
  tree = ParseOverride("a=x=y");
  OT_ASSERT_OK(tree);
  EXPECT_EQ(tree->At("a")->text, "x=y");
  tree = ParseOverride("a=");
  OT_ASSERT_OK(tree);
  EXPECT_EQ(tree->At("a")->kind, YamlValue::Kind::kNull);
  OT_EXPECT_ERROR(ParseOverride("a.b"), "not of the form key.path=value");
  OT_EXPECT_ERROR(ParseOverride("=3"), "not of the form key.path=value");
  OT_EXPECT_ERROR(ParseOverride("a..b=3"), "has an empty part");
  OT_EXPECT_ERROR(ParseOverride("a=[1"), "command line: not valid YAML");
  OT_EXPECT_ERROR(ParseOverride("a={x: 1, x: 2}"), "command line: duplicate key x");
}

TEST(StrictYaml, MappingsMergeAndEverythingElseReplaces) {
  auto onto = ParseYaml("a: {x: 1, y: 2}\nb: [1, 2]\nc: {z: 1}\n", "base.yaml");
  auto from = ParseYaml("a: {y: 3}\nb: [4]\nc: null\nd: 5\n", "top.yaml");
  OT_ASSERT_OK(onto);
  OT_ASSERT_OK(from);
  MergeYaml(*from, &*onto);
  EXPECT_EQ(onto->At("a.x")->text, "1");
  EXPECT_EQ(onto->At("a.x")->origin.ToString(), "base.yaml:1");
  EXPECT_EQ(onto->At("a.y")->text, "3");
  EXPECT_EQ(onto->At("a.y")->origin.ToString(), "top.yaml:1");
  EXPECT_EQ(onto->At("b")->children.size(), 1u);
  EXPECT_EQ(onto->At("c")->kind, YamlValue::Kind::kNull);
  EXPECT_EQ(onto->At("d")->text, "5");
}

}  // namespace
}  // namespace overtok
