#include "hub/repo_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/read_file.h"

namespace lapidary::hub {
namespace {

namespace fs = std::filesystem;

const std::string kCommit(40, 'c');
const std::string kSum(64, 'b');

class RepoCacheTest : public testing::Test {
 protected:
  RepoCacheTest() {
    std::string name = testing::TempDir() + "cache-XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~RepoCacheTest() override { fs::remove_all(root_); }

  fs::path root_;
};

TEST_F(RepoCacheTest, TheLayoutIsThatOfHuggingfaceHub) {
  const RepoCache cache(root_, "google/gemma-4-E4B-it");
  const fs::path folder = root_ / "models--google--gemma-4-E4B-it";
  EXPECT_EQ(cache.folder(), folder);
  EXPECT_EQ(cache.Blob(kSum), folder / "blobs" / kSum);
  EXPECT_EQ(cache.Snapshot(kCommit), folder / "snapshots" / kCommit);
  EXPECT_EQ(cache.Lock(kSum),
            root_ / ".locks" / "models--google--gemma-4-E4B-it" / (kSum + ".lock"));
  EXPECT_EQ(RepoOfFolder("models--google--gemma-4-E4B-it"), "google/gemma-4-E4B-it");
  for (const char* other : {"datasets--a--b", "models--gpt2", "models--", ".locks", "models--a--..",
                            "models--..--x", "models--a--b--c", "models--a/b--c"}) {
    EXPECT_EQ(RepoOfFolder(other), std::nullopt) << other;
  }
}

TEST_F(RepoCacheTest, LinksAreRelativeToWhereverTheFileIs) {
  const RepoCache cache(root_, "a/b");
  const RepoFile flat{"config.json", 4, std::string(40, 'a'), kSum, ""};
  const RepoFile deep{"Q8_0/parts/x.gguf", 4, std::string(40, 'a'), kSum, ""};
  fs::create_directories(cache.Blob(kSum).parent_path());
  std::ofstream(cache.Blob(kSum)) << "data";
  for (const RepoFile& file : {flat, deep, flat}) {
    ASSERT_TRUE(cache.Link(kCommit, file).ok());
    EXPECT_TRUE(cache.Has(kCommit, file));
    EXPECT_EQ(*ReadFile(cache.Snapshot(kCommit) / file.path, 100), "data");
  }
  EXPECT_EQ(fs::read_symlink(cache.Snapshot(kCommit) / "config.json"), "../../blobs/" + kSum);
  EXPECT_EQ(fs::read_symlink(cache.Snapshot(kCommit) / deep.path), "../../../../blobs/" + kSum);
  // A cache that is moved is still whole.
  fs::rename(root_ / "models--a--b", root_ / "models--c--d");
  EXPECT_TRUE(RepoCache(root_, "c/d").Has(kCommit, deep));
}

TEST_F(RepoCacheTest, AFileOfAnotherLengthIsNotThere) {
  const RepoCache cache(root_, "a/b");
  const RepoFile file{"x", 5, std::string(40, 'a'), kSum, ""};
  fs::create_directories(cache.Blob(kSum).parent_path());
  std::ofstream(cache.Blob(kSum)) << "data";
  ASSERT_TRUE(cache.Link(kCommit, file).ok());
  EXPECT_FALSE(cache.Has(kCommit, file));
}

TEST_F(RepoCacheTest, ARevisionLeadsToItsCommit) {
  const RepoCache cache(root_, "a/b");
  EXPECT_EQ(cache.CommitOf("main"), std::nullopt);
  EXPECT_EQ(cache.CommitOf(kCommit), kCommit);
  ASSERT_TRUE(cache.SetCommit("main", kCommit).ok());
  ASSERT_TRUE(cache.SetCommit("refs/pr/1", kCommit).ok());
  EXPECT_EQ(*ReadFile(cache.folder() / "refs" / "main", 100), kCommit);
  EXPECT_EQ(cache.CommitOf("refs/pr/1"), kCommit);
  for (const char* text : {"", "main", "../../../etc", "cccc"}) {
    std::ofstream(cache.folder() / "refs" / "main") << text;
    EXPECT_EQ(cache.CommitOf("main"), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lapidary::hub
