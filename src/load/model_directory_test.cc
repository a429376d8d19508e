#include "load/model_directory.h"

#include <gtest/gtest.h>

#include <fstream>

#include "model/presets.h"

namespace lapidary {
namespace {

TEST(ModelDescription, IsShortlyCalledByItsDirectoryOrItsPreset) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / "model_directory_test" / "own-name";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << PresetConfig("tiny-e").value().dump();
  for (const std::string& path :
       {directory.string(), directory.string() + "/", (directory / "..").string() + "/own-name"}) {
    EXPECT_EQ(DescribeModel(path).value().ShortName(), "own-name") << path;
  }
  std::filesystem::remove_all(directory.parent_path());
  EXPECT_EQ(DescribeModel("tiny-e").value().ShortName(), "tiny-e");
}

}  // namespace
}  // namespace lapidary
