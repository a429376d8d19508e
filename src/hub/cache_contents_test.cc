#include "hub/cache_contents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "hub/file_lock.h"
#include "hub/repo_cache.h"

namespace lapidary::hub {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kSum(64, 'b');

class CacheContentsTest : public testing::Test {
 protected:
  CacheContentsTest() {
    std::string name = testing::TempDir() + "contents-XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~CacheContentsTest() override { fs::remove_all(root_); }

  void Add(const std::string& repo, const std::string& revision, char digit) {
    const RepoCache cache(root_, repo);
    const std::string commit(40, digit);
    fs::create_directories(cache.folder() / "blobs");
    std::ofstream(cache.Blob(kSum)) << std::string(1000, 'x');
    CHECK_OK(cache.Link(commit, {"model.gguf", 1000, std::string(40, 'a'), kSum, ""}));
    if (!revision.empty()) CHECK_OK(cache.SetCommit(revision, commit));
  }

  fs::path root_;
};

TEST_F(CacheContentsTest, ModelsAreListedWithTheirBytesOnceAndTheirRevisions) {
  EXPECT_TRUE(ListCache(root_ / "nowhere").empty());
  Add("b/model", "main", '1');
  Add("b/model", "v1", '2');
  Add("b/model", "", '3');
  Add("a/model", "main", '4');
  fs::create_directories(root_ / "datasets--x--y" / "blobs");
  std::ofstream(root_ / "CACHEDIR.TAG") << "x";
  const std::vector<CachedModel> models = ListCache(root_);
  ASSERT_EQ(models.size(), 2);
  EXPECT_EQ(models[0].repo, "a/model");
  EXPECT_EQ(models[1].num_bytes, 1000);
  EXPECT_THAT(models[1].revisions, ElementsAre(std::string(40, '3'), "main", "v1"));
}

TEST_F(CacheContentsTest, OnlyTheModelThatWasNamedIsRemoved) {
  Add("a/model", "main", '1');
  Add("a/model-assistant", "main", '2');
  const auto freed = RemoveFromCache(root_, "a/model");
  ASSERT_TRUE(freed.ok()) << freed.error().message;
  EXPECT_EQ(*freed, 1000);
  ASSERT_EQ(ListCache(root_).size(), 1);
  EXPECT_EQ(ListCache(root_)[0].repo, "a/model-assistant");
  EXPECT_FALSE(RemoveFromCache(root_, "a/model").ok());
}

TEST_F(CacheContentsTest, WhatIsBeingFetchedIsNotRemoved) {
  Add("a/model", "main", '1');
  const auto lock = FileLock::Take(
      RepoCache(root_, "a/model").Lock(kSum), [] {}, [] { return false; });
  ASSERT_TRUE(lock.ok());
  const auto freed = RemoveFromCache(root_, "a/model");
  ASSERT_FALSE(freed.ok());
  EXPECT_THAT(freed.error().message, HasSubstr("being fetched"));
  EXPECT_EQ(ListCache(root_).size(), 1);
}

}  // namespace
}  // namespace lapidary::hub
