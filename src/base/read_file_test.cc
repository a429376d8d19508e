#include "base/read_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

namespace lapidary {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

class ReadFileTest : public testing::Test {
 protected:
  ReadFileTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    directory_ =
        std::filesystem::path(testing::TempDir()) / (std::string("read_file_") + info->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~ReadFileTest() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path Write(const std::string& name, const std::string& content) {
    std::ofstream(directory_ / name, std::ios::binary) << content;
    return directory_ / name;
  }
  static std::string Problem(const std::filesystem::path& path, size_t max_bytes) {
    const auto result = ReadFile(path, max_bytes);
    return result.ok() ? "no error" : result.error().message;
  }

  std::filesystem::path directory_;
};

TEST_F(ReadFileTest, GivesEveryByteUpToTheBound) {
  const std::string bytes("a\0\r\n\xff", 5);
  EXPECT_EQ(*ReadFile(Write("bytes", bytes), 5), bytes);
  EXPECT_EQ(*ReadFile(Write("empty", ""), 0), "");
  const std::string large(1 << 20, 'x');
  EXPECT_EQ(*ReadFile(Write("large", large), 1 << 20), large);
}

TEST_F(ReadFileTest, NamesBothSizesOfAFileThatIsTooLong) {
  EXPECT_THAT(Problem(Write("small", "text"), 3),
              EndsWith("it has 4 bytes and at most 3 are read"));
  // No memory is taken for it: this one has four terabytes.
  const auto sparse = Write("sparse", "");
  std::filesystem::resize_file(sparse, uintmax_t{1} << 42);
  EXPECT_THAT(Problem(sparse, 1 << 20), HasSubstr("4398046511104 bytes and at most 1048576"));
}

TEST_F(ReadFileTest, SaysWhatIsNotAFileThatCanBeRead) {
  EXPECT_THAT(Problem(directory_ / "absent", 9), HasSubstr("No such file"));
  EXPECT_THAT(Problem(directory_, 9), HasSubstr("it is a directory"));
  const auto pipe = directory_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(Problem(pipe, 9), HasSubstr("not a regular file"));
}

TEST_F(ReadFileTest, ReadsAndBoundsAFileOfUnknownLength) {
  const std::filesystem::path file = "/proc/self/status";  // its size is given as 0
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no /proc";
  EXPECT_THAT(*ReadFile(file, 1 << 20), HasSubstr("Name:"));
  EXPECT_THAT(Problem(file, 10), HasSubstr("at least 11 bytes and at most 10"));
}

}  // namespace
}  // namespace lapidary
