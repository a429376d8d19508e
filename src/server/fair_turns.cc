#include "server/fair_turns.h"

#include <new>
#include <numeric>

#include "base/check.h"

namespace lapidary {

void FairTurns::Add(uint64_t request, std::vector<int64_t> step_costs) {
  CHECK(!step_costs.empty());
  const int64_t cost = std::accumulate(step_costs.begin(), step_costs.end(), int64_t{0});
  const Place place = {now_ + step_costs.front(), num_added_++};
  const auto added = place_of_.emplace(request, place);
  CHECK(added.second);
  try {
    waiting_.emplace(place, Waiting{request, std::move(step_costs), 0});
  } catch (const std::bad_alloc&) {
    place_of_.erase(added.first);
    throw;
  }
  waiting_cost_ += cost;
}

std::optional<FairTurns::Turn> FairTurns::Take(int64_t room) {
  if (waiting_.empty()) return std::nullopt;
  const auto first = waiting_.begin();
  const Waiting& next = first->second;
  const Turn turn = {next.request, next.next_step, next.step_costs[next.next_step]};
  if (turn.cost > room) return std::nullopt;
  now_ = first->first.first;
  waiting_cost_ -= turn.cost;
  auto node = waiting_.extract(first);
  Waiting& rest = node.mapped();
  if (++rest.next_step == rest.step_costs.size()) {
    place_of_.erase(turn.request);
    return turn;
  }
  node.key().first += rest.step_costs[rest.next_step];
  place_of_[turn.request] = node.key();
  waiting_.insert(std::move(node));
  return turn;
}

void FairTurns::Remove(uint64_t request) {
  const auto found = place_of_.find(request);
  if (found == place_of_.end()) return;
  const auto waiting = waiting_.find(found->second);
  const Waiting& left = waiting->second;
  for (size_t step = left.next_step; step < left.step_costs.size(); ++step) {
    waiting_cost_ -= left.step_costs[step];
  }
  waiting_.erase(waiting);
  place_of_.erase(found);
}

}  // namespace lapidary
