// How many drafts a step shall ask for: as many as give most tokens a second, which may be none.
//
// Two things are measured: the share of drafts accepted, by their place in a round, and the time of
// steps by the number of sequences and of drafts (more rows cost more, in a mixture of experts much
// more). Drafts(K) then promise 1 + a1 + a1 a2 + ... tokens in a known time. Measurements grow old,
// so other numbers are tried again now and then, as far as half a hundredth of the time pays for
// it.
//
// Plain arithmetic without a clock: one thread, any device.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "executor/step_positions.h"

namespace lapidary {

class DraftPolicy {
 public:
  // Without `adapts` it is always `max_drafts`.
  DraftPolicy(int max_drafts, bool adapts);

  // For the next step, in which about so many sequences decode.
  int Choose(int num_sequences);

  // A round in which a sequence had so many drafts.
  void AddRound(int num_drafts, int num_accepted);
  // A step that did nothing but decode so many sequences, each with so many drafts.
  void AddStep(int num_sequences, int num_drafts, double seconds);

  // What a round of so many drafts gives a sequence.
  double ExpectedTokens(int num_drafts) const;
  // Share of the drafts at this place (from 0) that are accepted where all before them are.
  double AcceptRate(int place) const;
  // Hardly any first draft has been accepted for long: the assistant does not fit its target.
  bool has_collapsed() const;

 private:
  struct Cost {
    double seconds = 0.0;  // of a step, the last ones weighing most
    int num_measured = 0;
    int num_asked = 0;
  };
  // Steps of about as many sequences: in [2^(i-1), 2^i).
  struct LoadClass {
    std::vector<Cost> costs;  // by number of drafts
    double allowance = 0.0;   // seconds that trying other numbers may cost
    int next_trial = 0;
  };
  struct Rate {
    double tried = 0.0;
    double accepted = 0.0;
  };

  LoadClass& ClassOf(int num_sequences);
  // Whether it is worth finding out what a step with so many drafts takes under this load.
  bool IsPromising(const LoadClass& load, int num_drafts) const;
  const int max_drafts_;
  const bool adapts_;
  std::vector<LoadClass> classes_;
  std::array<Rate, kMaxDrafts> rates_;
};

}  // namespace lapidary
