#include "hub/repo_listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json_fields.h"
#include "hub/repo_path.h"

namespace lapidary::hub {
namespace {

using testing::HasSubstr;

const std::string kSha1(40, 'a');
const std::string kSha256(64, 'b');

Json Entry(const std::string& path, int64_t size = 10) {
  return {{"type", "file"}, {"path", path}, {"size", size}, {"oid", kSha1}};
}

Result<RepoListing> Listed(const Json& page) {
  RepoListing listing;
  RETURN_IF_ERROR(AddTreePage(page.dump(), "the listing", &listing));
  RETURN_IF_ERROR(CompleteListing("the listing", &listing));
  return listing;
}

TEST(RepoListingTest, LargeFilesHaveTheSumAndLengthOfTheirBytes) {
  Json large = Entry("model.safetensors", 135);
  large["lfs"] = {{"oid", kSha256}, {"size", 5'000'000'000}, {"pointerSize", 135}};
  large["xetHash"] = kSha256;
  const auto listing =
      Listed({large, Entry("config.json"), {{"type", "directory"}, {"path", "x"}, {"oid", kSha1}}});
  ASSERT_TRUE(listing.ok()) << listing.error().message;
  ASSERT_EQ(listing->files.size(), 2);
  EXPECT_EQ(listing->Find("config.json")->BlobName(), kSha1);
  const RepoFile* file = listing->Find("model.safetensors");
  EXPECT_EQ(file->BlobName(), kSha256);
  EXPECT_EQ(file->num_bytes, 5'000'000'000);
  EXPECT_EQ(listing->Find("model"), nullptr);
}

TEST(RepoListingTest, APathThatLeavesItsFolderIsRefused) {
  for (const char* path : {"", "/etc/passwd", "../x", "a/../../x", "..", ".", "a/./b", "a//b", "a/",
                           "a\\b", "a\nb", "a\tb", "\x7f"}) {
    EXPECT_FALSE(IsRepoPath(path)) << path;
    EXPECT_FALSE(Listed({Entry(path)}).ok()) << path;
  }
  EXPECT_FALSE(Listed({Entry(std::string("a\0b", 3))}).ok());
  EXPECT_FALSE(Listed({Entry(std::string(250, 'x'))}).ok());
  EXPECT_FALSE(
      IsRepoPath(std::string(600, 'x').replace(100, 1, "/") + "/" + std::string(600, 'y')));
  EXPECT_TRUE(Listed({Entry("Q4_K_M/gemma 4 (größe).gguf"), Entry("..a"), Entry("a..")}).ok());
}

TEST(RepoListingTest, ImpossibleLengthsAndSumsAreRefused) {
  EXPECT_FALSE(Listed({Entry("x", -1)}).ok());
  EXPECT_FALSE(Listed({Entry("x", kMaxFileBytes + 1)}).ok());
  for (const std::string& sum : {std::string(), std::string("../../x"), kSha1 + "0",
                                 std::string(40, 'G'), std::string(40, 'A')}) {
    Json entry = Entry("x");
    entry["oid"] = sum;
    EXPECT_FALSE(Listed({entry}).ok()) << sum;
    entry = Entry("x");
    entry["lfs"] = {{"oid", sum + "x"}, {"size", 1}};
    EXPECT_FALSE(Listed({entry}).ok()) << sum;
  }
}

TEST(RepoListingTest, AFileIsListedOnceAndIsNoFolder) {
  const auto twice = Listed({Entry("a"), Entry("b"), Entry("a")});
  ASSERT_FALSE(twice.ok());
  EXPECT_THAT(twice.error().message, HasSubstr("'a' twice"));
  const auto both = Listed({Entry("a"), Entry("a/b/c")});
  ASSERT_FALSE(both.ok());
  EXPECT_THAT(both.error().message, HasSubstr("as a file and as a folder"));
}

TEST(RepoListingTest, WhatIsNoListingIsAnError) {
  RepoListing listing;
  for (const char* text : {"", "{}", "[1]", "[{}", "null", "[[]]"}) {
    EXPECT_FALSE(AddTreePage(text, "the listing", &listing).ok()) << text;
  }
  EXPECT_TRUE(AddTreePage("[]", "the listing", &listing).ok());
  Json many = Json::array();
  for (size_t index = 0; index <= kMaxRepoFiles; ++index) {
    many.push_back(Entry("f" + std::to_string(index)));
  }
  EXPECT_FALSE(Listed(many).ok());
}

TEST(RepoListingTest, ACommitIsFortyDigits) {
  EXPECT_EQ(*ParseCommit(Json{{"sha", kSha1}}.dump(), "the Hub"), kSha1);
  for (const char* text :
       {"{}", "[]", R"({"sha": 5})", R"({"sha": "main"})", R"({"sha": "../x"})"}) {
    EXPECT_FALSE(ParseCommit(text, "the Hub").ok()) << text;
  }
}

TEST(RepoListingTest, TreeFilesAreReadAsTheyWereWritten) {
  RepoListing listing;
  listing.commit = kSha1;
  listing.files = {{"a/config.json", 12, kSha1, "", ""},
                   {"model.safetensors", 5'000'000'000, kSha1, kSha256, kSha256}};
  const auto read = ParseTreeFile(WriteTreeFile(listing), "tree", kSha1);
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read->files.size(), 2);
  EXPECT_EQ(read->files[1].sha256, kSha256);
  EXPECT_EQ(read->files[1].xet_hash, kSha256);
  EXPECT_EQ(read->files[1].num_bytes, 5'000'000'000);
  EXPECT_EQ(read->files[0].path, "a/config.json");
  EXPECT_FALSE(ParseTreeFile(R"({"format_version": 2, "files": {}})", "tree", kSha1).ok());
  EXPECT_FALSE(ParseTreeFile(R"({"format_version": 1})", "tree", kSha1).ok());
}

}  // namespace
}  // namespace lapidary::hub
