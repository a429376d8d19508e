// Whose turn it is: requests with work in steps of known cost share what does the work.
//
// Self-clocked fair queueing: the step that comes next is the one that would end first if all
// requests were served at the same speed. A newcomer begins level with those that are being served,
// so it waits for at most one step of each of them and not for all their work, and small requests
// that keep coming do not starve a large one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace lapidary {

// Not thread-safe.
class FairTurns {
 public:
  struct Turn {
    uint64_t request = 0;
    size_t step = 0;
    int64_t cost = 0;
  };

  // Steps begin in their order; costs are positive. The request's number is new.
  void Add(uint64_t request, std::vector<int64_t> step_costs);
  // The next step, if it costs at most `room`: a large one is not overtaken by what is smaller.
  std::optional<Turn> Take(int64_t room);
  // Drops the steps of a request that have not been taken.
  void Remove(uint64_t request);

  // Of all steps that have not been taken.
  int64_t waiting_cost() const { return waiting_cost_; }

 private:
  struct Waiting {
    uint64_t request = 0;
    std::vector<int64_t> step_costs;
    size_t next_step = 0;
  };
  using Place = std::pair<int64_t, uint64_t>;  // where its next step ends, order of arrival

  std::map<Place, Waiting> waiting_;  // with steps left
  std::map<uint64_t, Place> place_of_;
  int64_t now_ = 0;  // where the step that was taken last ends
  uint64_t num_added_ = 0;
  int64_t waiting_cost_ = 0;
};

}  // namespace lapidary
