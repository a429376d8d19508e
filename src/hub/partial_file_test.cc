#include "hub/partial_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>

#include "base/read_file.h"
#include "hub/blob_sum.h"

namespace lapidary::hub {
namespace {

namespace fs = std::filesystem;

class PartialFileTest : public testing::Test {
 protected:
  PartialFileTest() {
    std::string name = testing::TempDir() + "partial-XXXXXX";
    folder_ = mkdtemp(name.data());
    path_ = folder_ / "file";
  }
  ~PartialFileTest() override { fs::remove_all(folder_); }

  PartialFile Open(int64_t num_bytes) {
    auto file = PartialFile::Open(path_, num_bytes, /*piece_bytes=*/10);
    CHECK(file.ok()) << file.error().message;
    return std::move(file).value();
  }

  fs::path folder_;
  fs::path path_;
};

TEST_F(PartialFileTest, WhatWasWrittenIsThereForTheNextProcess) {
  {
    PartialFile file = Open(25);
    EXPECT_EQ(file.num_pieces(), 3);
    ASSERT_TRUE(file.Append(2, "uvw").ok());
    ASSERT_TRUE(file.Append(0, "abc").ok());
    ASSERT_TRUE(file.Append(0, "defghij").ok());
  }
  EXPECT_EQ(PartialFile::BytesThere(path_, 25, 10), 13);
  EXPECT_EQ(PartialFile::BytesThere(path_, 26, 10), 0);
  PartialFile file = Open(25);
  EXPECT_EQ(file.num_written(), 13);
  EXPECT_EQ(file.Missing(0).size(), 0);
  EXPECT_EQ(file.Missing(1).begin, 10);
  EXPECT_EQ(file.Missing(2).begin, 23);
  EXPECT_EQ(file.Missing(2).end, 25);
  ASSERT_TRUE(file.Append(1, "klmnopqrst").ok());
  ASSERT_TRUE(file.Append(2, "xy").ok());
  ASSERT_TRUE(file.is_complete());
  ASSERT_TRUE(file.Finish().ok());
  EXPECT_EQ(*ReadFile(path_, 1000), "abcdefghijklmnopqrstuvwxy");
}

TEST_F(PartialFileTest, AnythingElseInItsPlaceIsBegunAnew) {
  for (const std::string& other :
       {std::string("x"), std::string(25 + 3 * 8 + 16, 'x'), std::string(25, '\0')}) {
    std::ofstream(path_) << other;
    EXPECT_EQ(PartialFile::BytesThere(path_, 25, 10), 0);
    EXPECT_EQ(Open(25).num_written(), 0);
    fs::remove(path_);
  }
}

TEST_F(PartialFileTest, CountsThatCannotBeAreNotBelieved) {
  { ASSERT_TRUE(Open(25).Append(0, "abc").ok()); }
  for (const int64_t count : {int64_t{-1}, int64_t{11}, INT64_MAX, INT64_MIN}) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(25);
    file.write(reinterpret_cast<const char*>(&count), sizeof(count));
    file.close();
    EXPECT_EQ(PartialFile::BytesThere(path_, 25, 10), 0) << count;
  }
}

TEST_F(PartialFileTest, ALinkIsNotFollowed) {
  std::ofstream(folder_ / "other") << "mine";
  fs::create_symlink(folder_ / "other", path_);
  EXPECT_FALSE(PartialFile::Open(path_, 25, 10).ok());
  EXPECT_EQ(*ReadFile(folder_ / "other", 100), "mine");
}

TEST_F(PartialFileTest, AnEmptyFileIsCompleteAtOnce) {
  PartialFile file = Open(0);
  EXPECT_TRUE(file.is_complete());
  ASSERT_TRUE(file.Finish().ok());
  EXPECT_EQ(fs::file_size(path_), 0);
}

TEST_F(PartialFileTest, AnyOrderOfPiecesAndBreaksGivesTheSameBytes) {
  std::mt19937 random(7);
  std::string text(1000, ' ');
  for (char& c : text) c = static_cast<char>(random());
  for (int round = 0; round < 100'000; ++round) {
    PartialFile file = Open(1000);  // as after a break
    if (file.is_complete()) break;
    const int piece = static_cast<int>(random() % file.num_pieces());
    const PartialFile::Range missing = file.Missing(piece);
    const auto count = static_cast<size_t>(std::min<int64_t>(1 + random() % 4, missing.size()));
    ASSERT_TRUE(file.Append(piece, std::string_view(text).substr(missing.begin, count)).ok());
  }
  PartialFile file = Open(1000);
  ASSERT_TRUE(file.is_complete());
  ASSERT_TRUE(file.Finish().ok());
  EXPECT_EQ(*ReadFile(path_, 2000), text);
}

TEST_F(PartialFileTest, SumsAreThoseOfGitAndOfSha256) {
  std::ofstream(path_) << "hello\n";
  const auto goes_on = [](int64_t) { return true; };
  EXPECT_EQ(*SumOfFile(path_, 6, std::string(40, '0'), goes_on),
            "ce013625030ba8dba906f756967f9e9ca394464a");  // git hash-object
  EXPECT_EQ(*SumOfFile(path_, 6, std::string(64, '0'), goes_on),
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");  // sha256sum
  EXPECT_FALSE(SumOfFile(path_, 7, std::string(64, '0'), goes_on).ok());
  EXPECT_FALSE(SumOfFile(path_, 6, std::string(64, '0'), [](int64_t) { return false; }).ok());
}

}  // namespace
}  // namespace lapidary::hub
