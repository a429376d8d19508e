#include "base/thread_placement.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>

#include "base/check.h"

namespace lapidary {
namespace {

// "0-3,8,10-11" -> the numbers; what is not of that form ends the list.
std::vector<int> ParseCpuList(std::string_view text) {
  constexpr int kMaxCpus = 1 << 16;
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) break;
    int last = first;
    if (parsed.ptr < end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc()) break;
    }
    if (first < 0 || last >= kMaxCpus) break;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    at = parsed.ptr + 1;
  }
  return cpus;
}

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {  // More CPUs than such a set holds.
    cpus.resize(std::max(std::thread::hardware_concurrency(), 1u));
    std::iota(cpus.begin(), cpus.end(), 0);
    return cpus;
  }
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// How many of `num_threads` go to each node, in proportion to its CPUs.
std::vector<int> ThreadsOfNodes(const std::vector<NodeCpus>& nodes, int num_threads) {
  size_t num_cpus = 0;
  for (const NodeCpus& node : nodes) num_cpus += node.size();
  std::vector<int> counts;
  size_t cpus_before = 0;
  int placed = 0;
  for (const NodeCpus& node : nodes) {
    cpus_before += node.size();
    const int end = static_cast<int>((num_threads * cpus_before + num_cpus / 2) / num_cpus);
    counts.push_back(end - placed);
    placed = end;
  }
  return counts;
}

}  // namespace

CpuTopology CpuTopology::Read(const std::filesystem::path& directory,
                              const std::vector<int>& allowed, int current_cpu) {
  CpuTopology topology;
  constexpr int kMaxNodes = 1024;
  for (int node = 0; node < kMaxNodes; ++node) {
    std::ifstream file(directory / ("node" + std::to_string(node)) / "cpulist");
    std::string text;
    if (!std::getline(file, text)) continue;
    NodeCpus cpus;
    for (const int cpu : ParseCpuList(text)) {
      if (std::find(allowed.begin(), allowed.end(), cpu) != allowed.end()) cpus.push_back(cpu);
    }
    if (cpus.empty()) continue;
    if (std::find(cpus.begin(), cpus.end(), current_cpu) != cpus.end()) {
      topology.current_node = static_cast<int>(topology.nodes.size());
    }
    topology.nodes.push_back(std::move(cpus));
  }
  if (topology.nodes.empty()) topology.nodes.push_back(allowed);
  return topology;
}

CpuTopology CpuTopology::OfThisMachine() {
  return Read("/sys/devices/system/node", AllowedCpus(), sched_getcpu());
}

ThreadPlacement PlaceThreads(const CpuTopology& topology, int num_threads, NumaMode mode,
                             bool pin) {
  CHECK(!topology.nodes.empty());
  std::vector<NodeCpus> nodes = topology.nodes;
  if (mode == NumaMode::kIsolate) nodes = {topology.nodes[topology.current_node]};
  size_t num_cpus = 0;
  for (const NodeCpus& node : nodes) num_cpus += node.size();
  ThreadPlacement placement;
  placement.num_threads = std::max(num_threads > 0 ? num_threads : static_cast<int>(num_cpus), 1);
  const bool has_nodes = topology.nodes.size() > 1 && mode != NumaMode::kOff;
  if (num_cpus == 0 || (!has_nodes && !pin)) return placement;
  const std::vector<int> counts = ThreadsOfNodes(nodes, placement.num_threads);
  placement.num_shares = 0;
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (counts[node] == 0) continue;
    for (int idx = 0; idx < counts[node]; ++idx) {
      const NodeCpus& cpus = nodes[node];
      const bool has_own = pin && idx < static_cast<int>(cpus.size());
      placement.share_of_thread.push_back(placement.num_shares);
      placement.thread_cpus.push_back(has_own ? NodeCpus{cpus[idx]} : cpus);
    }
    ++placement.num_shares;
  }
  if (!has_nodes) {  // Pinned alone: the loops stay as they are.
    placement.num_shares = 1;
    placement.share_of_thread.clear();
  }
  return placement;
}

void BindThisThread(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace lapidary
