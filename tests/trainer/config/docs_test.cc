#include "trainer/config/docs.h"

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"
#include "trainer/config/schema.h"

namespace overtok {
namespace {

TEST(Docs, PageIsWhatTheSchemaSays) {
  const auto page = ReadFile(OVERTOK_SOURCE_DIR "/docs/configuration.md");
  OT_ASSERT_OK(page);
  EXPECT_EQ(*page, ConfigurationPage())
      << "write it anew: overtok config docs > docs/configuration.md";
}

TEST(Docs, EveryKeyIsExplained) {
  const std::string page = ConfigurationPage();
  for (const Key& key : ConfigKeys()) {
    EXPECT_GE(key.doc.size(), 10u) << key.name;
    EXPECT_NE(page.find("| `" + key.name + "` |"), std::string::npos) << key.name;
  }
}

}  // namespace
}  // namespace overtok
