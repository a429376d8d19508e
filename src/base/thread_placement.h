// Where the threads of a pool run: on machines with several NUMA nodes, and bound to cores on
// request.
//
// With nodes every thread has a share of each loop that it takes pieces of first (thread_pool.h),
// the same for all threads of a node and all loops. Weights that a pool writes while they are
// loaded are thereby on the node whose threads will read them: the system places a page where it is
// touched first. Pages of a mapped file are where they were when the file was read.
#pragma once

#include <filesystem>
#include <vector>

namespace lapidary {

// The words of llama.cpp's --numa. On a machine with one node all are the same.
enum class NumaMode {
  kOff,         // threads run anywhere
  kDistribute,  // on all nodes, as many on each as its part of the CPUs
  kIsolate,     // on the node that the process was started on
};

// CPUs of one node, ascending.
using NodeCpus = std::vector<int>;

struct CpuTopology {
  std::vector<NodeCpus> nodes;  // those with CPUs that this process may use; at least one
  int current_node = 0;         // the index of the one that the caller runs on

  // `directory`: node*/cpulist below it; nodes without CPUs are left out, as are all others than
  // `allowed`. One node of all allowed CPUs where it cannot be read.
  static CpuTopology Read(const std::filesystem::path& directory, const std::vector<int>& allowed,
                          int current_cpu);
  static CpuTopology OfThisMachine();
};

struct ThreadPlacement {
  int num_threads = 1;
  int num_shares = 1;
  std::vector<int> share_of_thread = {};           // ascending; empty: all have the only one
  std::vector<std::vector<int>> thread_cpus = {};  // where each may run; empty: anywhere
};

// `num_threads` 0: one for each CPU of the nodes in use. `pin`: each thread on a CPU of its own,
// as long as there are any.
ThreadPlacement PlaceThreads(const CpuTopology& topology, int num_threads, NumaMode mode, bool pin);

// The calling thread runs on these alone from now on. A hint: nothing happens where the system
// does not let it.
void BindThisThread(const std::vector<int>& cpus);

}  // namespace lapidary
