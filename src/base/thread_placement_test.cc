// Made-up machines: what is read of them, and who runs where.
#include "base/thread_placement.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <numeric>
#include <thread>

namespace lapidary {
namespace {

std::vector<int> Range(int begin, int end) {
  std::vector<int> cpus(end - begin);
  std::iota(cpus.begin(), cpus.end(), begin);
  return cpus;
}

// A directory like /sys/devices/system/node, removed with its owner.
class FakeNodes {
 public:
  FakeNodes() {
    char name[] = "/tmp/lapidary-nodes-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~FakeNodes() { std::filesystem::remove_all(path_); }
  FakeNodes& Add(int node, const std::string& cpus) {
    const auto directory = path_ / ("node" + std::to_string(node));
    std::filesystem::create_directory(directory);
    std::ofstream(directory / "cpulist") << cpus << "\n";
    return *this;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

const CpuTopology kTwoSockets = {.nodes = {Range(0, 8), Range(8, 16)}, .current_node = 1};

TEST(CpuTopology, NodesAreReadWithTheCpusTheProcessMayUse) {
  FakeNodes nodes;
  nodes.Add(0, "0-3,8-11").Add(1, "4-7,12-15").Add(2, "");
  const CpuTopology all = CpuTopology::Read(nodes.path(), Range(0, 16), /*current_cpu=*/12);
  ASSERT_EQ(all.nodes.size(), 2u) << "a node of memory alone has no threads";
  EXPECT_EQ(all.nodes[0], (NodeCpus{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(all.current_node, 1);
  const CpuTopology some = CpuTopology::Read(nodes.path(), {5, 6}, 5);
  ASSERT_EQ(some.nodes.size(), 1u) << "a container with CPUs of one node";
  EXPECT_EQ(some.nodes[0], (NodeCpus{5, 6}));
  EXPECT_EQ(some.current_node, 0);
}

TEST(CpuTopology, WhatCannotBeReadIsOneNode) {
  FakeNodes nodes;
  for (const char* text : {"", "x", "-3", "3-", "99999999999", "0-99999999"}) {
    nodes.Add(0, text);
    const CpuTopology topology = CpuTopology::Read(nodes.path(), {0, 1}, 0);
    ASSERT_EQ(topology.nodes.size(), 1u) << text;
    EXPECT_EQ(topology.nodes[0], (NodeCpus{0, 1})) << text;
  }
  EXPECT_EQ(CpuTopology::Read("/nonexistent", {0, 1}, 0).nodes.size(), 1u);
  EXPECT_FALSE(CpuTopology::OfThisMachine().nodes[0].empty());
}

TEST(PlaceThreads, OneNodeNeedsNothing) {
  const CpuTopology topology = {.nodes = {Range(0, 6)}};
  for (const NumaMode mode : {NumaMode::kOff, NumaMode::kDistribute, NumaMode::kIsolate}) {
    const ThreadPlacement placement = PlaceThreads(topology, 0, mode, /*pin=*/false);
    EXPECT_EQ(placement.num_threads, 6);
    EXPECT_EQ(placement.num_shares, 1);
    EXPECT_TRUE(placement.thread_cpus.empty());
  }
}

TEST(PlaceThreads, DistributedThreadsAreBoundToNodesInProportionToTheirCpus) {
  const ThreadPlacement even = PlaceThreads(kTwoSockets, 6, NumaMode::kDistribute, false);
  EXPECT_EQ(even.num_shares, 2);
  EXPECT_EQ(even.share_of_thread, (std::vector<int>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(even.thread_cpus[2], Range(0, 8));
  EXPECT_EQ(even.thread_cpus[3], Range(8, 16));
  const CpuTopology uneven = {.nodes = {{0}, {1}, Range(2, 8)}};
  const ThreadPlacement few = PlaceThreads(uneven, 4, NumaMode::kDistribute, false);
  EXPECT_EQ(few.share_of_thread.size(), 4u);
  EXPECT_EQ(few.share_of_thread.back() + 1, few.num_shares) << "every share has a thread";
  EXPECT_EQ(PlaceThreads(kTwoSockets, 1, NumaMode::kDistribute, false).num_shares, 1);
}

TEST(PlaceThreads, IsolatedThreadsStayOnTheCurrentNode) {
  const ThreadPlacement placement = PlaceThreads(kTwoSockets, 0, NumaMode::kIsolate, false);
  EXPECT_EQ(placement.num_threads, 8);
  EXPECT_EQ(placement.num_shares, 1);
  EXPECT_EQ(placement.thread_cpus, std::vector<NodeCpus>(8, Range(8, 16)));
}

TEST(PlaceThreads, PinnedThreadsHaveACpuEachAsLongAsThereAreAny) {
  const ThreadPlacement placement =
      PlaceThreads({.nodes = {{3, 5}}}, 3, NumaMode::kDistribute, /*pin=*/true);
  EXPECT_EQ(placement.num_shares, 1);
  EXPECT_EQ(placement.thread_cpus, (std::vector<NodeCpus>{{3}, {5}, {3, 5}}));
  const ThreadPlacement nodes = PlaceThreads(kTwoSockets, 4, NumaMode::kDistribute, true);
  EXPECT_EQ(nodes.thread_cpus, (std::vector<NodeCpus>{{0}, {1}, {8}, {9}}));
}

TEST(BindThisThread, RunsOnTheGivenCpu) {
  const int cpu = CpuTopology::OfThisMachine().nodes[0].back();
  std::thread([&] {
    BindThisThread({cpu});
    EXPECT_EQ(sched_getcpu(), cpu);
  }).join();
}

}  // namespace
}  // namespace lapidary
