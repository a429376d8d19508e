// How long a card takes for a step of a model: a sum whose terms were fitted to measured steps.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "executor/step_batch.h"
#include "model/plan.h"

namespace lapidary::simulated {

// What the time of a step depends on. Keys are cached tokens that a row attends to, once for each
// row; those of sliding layers end at the window.
struct StepWork {
  int32_t num_decode_rows = 0;
  double num_decode_keys = 0.0;
  double num_window_keys = 0.0;  // of decode rows, in sliding layers
  int32_t num_prompt_rows = 0;
  double num_prompt_keys = 0.0;  // in full layers; those of sliding layers are part of a row

  int32_t num_rows() const { return num_decode_rows + num_prompt_rows; }
  // A row of one sequence behind `num_cached` tokens.
  void AddDecode(int32_t num_cached, int32_t window);
  // Rows of one prompt behind `num_cached` tokens.
  void AddPrompt(int32_t num_rows, int32_t num_cached);
};

// Without drafts, of which a simulated device has none.
StepWork WorkOf(const StepBatch& batch, int32_t window);

// One row of the table: a model on a card, weights in bf16. Milliseconds.
struct ModelTimings {
  const char* preset = "";
  // A step of one decode row, which is a kernel of its own: without keys, and of a key.
  double one_row = 0.0;
  double one_row_key = 0.0;
  // Any other step: reading the weights and starting kernels,
  double floor = 0.0;
  // reading experts: of all of them, and the rows after which 63% are read,
  double experts = 0.0;
  double expert_rows = 1.0;
  // and by row and key.
  double decode_row = 0.0;
  double decode_key = 0.0;  // in full layers
  double window_key = 0.0;  // in sliding layers
  double prompt_row = 0.0;
  double prompt_key = 0.0;

  double Milliseconds(const StepWork& work) const;
};

struct Card {
  const char* name = "";
  const char* title = "";    // for people
  int64_t memory_bytes = 0;  // of the device
  int num_sms = 0;
  std::span<const ModelTimings> models;
};

// An error that names the cards there are.
Result<const Card*> FindCard(std::string_view name);
std::vector<std::string> CardNames();

// The timings of the published model that has this plan, whatever it is called; an error that names
// the models there are.
Result<const ModelTimings*> FindTimings(const Card& card, const ModelPlan& plan);

}  // namespace lapidary::simulated
