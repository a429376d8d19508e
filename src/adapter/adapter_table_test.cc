#include "adapter/adapter_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "adapter/adapter_file.h"
#include "model/presets.h"

namespace lapidary {
namespace {

class AdapterTableTest : public testing::Test {
 protected:
  AdapterTableTest()
      : directory_(std::filesystem::temp_directory_path() /
                   ("lapidary-adapters-" + std::to_string(getpid()))) {}
  ~AdapterTableTest() override { std::filesystem::remove_all(directory_); }

  // A directory with an adapter of this rank.
  std::filesystem::path Write(const std::string& name, int rank) {
    const std::filesystem::path path = directory_ / name;
    std::filesystem::create_directories(path);
    std::ofstream(path / "adapter_config.json") << "{\"r\": " << rank << "}";
    const std::vector<std::byte> bytes =
        AdapterFile().AddPair("model.layers.1.mlp.up_proj", 128, 96, rank).Bytes();
    std::ofstream(path / "adapter_model.safetensors", std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    return path;
  }
  Status Load(const std::string& name, int rank, bool replaces = false) {
    return table_->Load(name, Write(name, rank), "shown/" + name, replaces);
  }

  const std::filesystem::path directory_;
  const std::shared_ptr<AdapterTable> table_ = std::make_shared<AdapterTable>(
      MakeModelPlan(*ParseModelConfig(*PresetConfig("tiny-e"), "tiny-e")).value(),
      AdapterTableOptions{.max_adapters = 2, .max_rank = 8});
};

TEST_F(AdapterTableTest, NamesAreGivenOnceUnlessReplaced) {
  ASSERT_TRUE(Load("a", 2).ok());
  EXPECT_NE(Load("a", 2).error().message.find("loaded already"), std::string::npos);
  const auto before = table_->Begin("a").adapter();
  ASSERT_TRUE(Load("a", 4, /*replaces=*/true).ok());
  EXPECT_NE(table_->Begin("a").adapter()->digest(), before->digest());
  ASSERT_EQ(table_->List().size(), 1u);
  EXPECT_EQ(table_->List()[0].path, "shown/a");
}

TEST_F(AdapterTableTest, OnlySoManyAreLoadedAndOfNoLargerRank) {
  ASSERT_TRUE(Load("a", 1).ok());
  EXPECT_NE(Load("b", 9).error().message.find("at most 8"), std::string::npos);
  ASSERT_TRUE(Load("b", 8).ok());
  EXPECT_NE(Load("c", 1).error().message.find("--max-cpu-loras"), std::string::npos);
  EXPECT_TRUE(table_->Unload("a"));
  EXPECT_FALSE(table_->Unload("a"));
  EXPECT_TRUE(Load("c", 1).ok());
}

TEST_F(AdapterTableTest, NamesAreNamesOfModels) {
  const std::vector<std::string> names = {"", "two words", "line\n", "quo\"te",
                                          std::string(300, 'a')};
  for (const std::string& name : names) {
    EXPECT_FALSE(table_->Load(name, Write("x", 1), "x", false).ok()) << name;
  }
  EXPECT_TRUE(CheckAdapterName("team/sql-v2:latest").ok());
}

TEST_F(AdapterTableTest, RequestsAreCountedAndKeepTheAdapterThatTheyBeganWith) {
  ASSERT_TRUE(Load("a", 1).ok());
  const auto counts = [&] {
    const AdapterTable::Entry entry = table_->List()[0];
    return std::tuple(entry.num_requests, entry.num_waiting, entry.num_running);
  };
  EXPECT_EQ(table_->Begin("none").adapter(), nullptr);
  AdapterTable::Use first = table_->Begin("a");
  {
    AdapterTable::Use second = table_->Begin("a");
    second.HasBegun();
    second.HasBegun();
    EXPECT_EQ(counts(), std::tuple(2u, 1, 1));
    AdapterTable::Use moved = std::move(second);
    EXPECT_EQ(counts(), std::tuple(2u, 1, 1));
  }
  EXPECT_EQ(counts(), std::tuple(2u, 1, 0));
  const std::weak_ptr<const Adapter> old = first.adapter();
  ASSERT_TRUE(Load("a", 2, /*replaces=*/true).ok());
  EXPECT_EQ(counts(), std::tuple(2u, 0, 0));
  first.HasBegun();
  EXPECT_FALSE(old.expired());
  first = {};
  EXPECT_TRUE(old.expired());
  EXPECT_EQ(counts(), std::tuple(2u, 0, 0));
}

TEST_F(AdapterTableTest, ThreadsLoadUseAndUnloadAtOnce) {
  const std::filesystem::path path = Write("a", 1);
  std::vector<std::thread> threads;
  for (int idx = 0; idx < 4; ++idx) {
    threads.emplace_back([&, idx] {
      for (int round = 0; round < 50; ++round) {
        if (idx == 0) static_cast<void>(table_->Load("a", path, "a", /*replaces=*/round % 2 == 0));
        if (idx == 1) table_->Unload("a");
        AdapterTable::Use use = table_->Begin("a");
        if (use.adapter() != nullptr) use.HasBegun();
        for (const AdapterTable::Entry& entry : table_->List()) {
          EXPECT_GE(entry.num_waiting, 0);
          EXPECT_GE(entry.num_running, 0);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const AdapterTable::Entry& entry : table_->List()) {
    EXPECT_EQ(entry.num_waiting + entry.num_running, 0);
  }
}

}  // namespace
}  // namespace lapidary
