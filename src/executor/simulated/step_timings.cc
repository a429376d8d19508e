#include "executor/simulated/step_timings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "model/presets.h"

namespace lapidary::simulated {
namespace {

// The table of cards. Each term is fitted to what docs/performance.md measured with random weights
// in bf16; step_timings_test.cc holds the measured steps and how far the sum is from each, and
// src/fleet/throughput_test.cc the servers' throughput. To add a card, or to fit a term anew:
//
//   decode rows, keys:  cuda_step_bench --preset e2b --sequences 1,8,80,100 [--context 8000]
//   prompt rows, keys:  lapidary bench latency e2b --load-format dummy --device cuda
//                         --batch-size 1 --input-len 8192 --output-len 1
//   100 clients:        lapidary serve e2b --load-format dummy --tokenizer models/pebble-e
//                         --max-model-len 4096 --max-num-seqs 128
//                       lapidary bench serve --random-input-len 512 --random-output-len 512
//                         --num-prompts 200 --max-concurrency 100 --seed 1 --ignore-eos
//                         --vocab-size 2000
//
// How: keys at 1.1 to 1.4 times the bytes they are, at 4.2 TB/s; then `floor` and `decode_row` from
// steps of few and of many sequences, `one_row` from the step of one, `one_row_key` from its steps
// at 100,000 tokens and more; prompt terms from prompts of 1,000 and of 8,192 tokens.
constexpr ModelTimings kH200[] = {
    {.preset = "e2b",
     .one_row = 1.551,
     .one_row_key = 8e-6,
     .floor = 2.017,
     .decode_row = 0.00873,
     .decode_key = 4.5e-6,
     .window_key = 9e-6,
     .prompt_row = 0.00215,
     .prompt_key = 1e-7},
    {.preset = "e4b",
     .one_row = 2.74,
     .one_row_key = 1.2e-5,
     .floor = 3.75,
     .decode_row = 0.005,
     .decode_key = 9e-6,
     .window_key = 2.2e-5,
     .prompt_row = 0.0072,
     .prompt_key = 1.5e-7},
    {.preset = "12b",
     .one_row = 6.31,
     .one_row_key = 5e-6,
     .floor = 6.1,
     .decode_row = 0.018,
     .decode_key = 2.5e-6,
     .window_key = 9.4e-5,
     .prompt_row = 0.0326,
     .prompt_key = 8e-7},
    {.preset = "26b-a4b",
     .one_row = 2.346,
     .one_row_key = 4.2e-6,
     .floor = 2.25,
     .experts = 10.0,
     .expert_rows = 16.0,
     .decode_row = 0.008,
     .decode_key = 2.8e-6,
     .window_key = 5.6e-5,
     .prompt_row = 0.0145,
     .prompt_key = 1e-7},
    {.preset = "31b",
     .one_row = 15.66,
     .one_row_key = 1.6e-5,
     .floor = 16.2,
     .decode_row = 0.0163,
     .decode_key = 1.08e-5,
     .window_key = 2.15e-4,
     .prompt_row = 0.0839,
     .prompt_key = 2.9e-6},
};

constexpr Card kCards[] = {
    {.name = "h200",
     .title = "NVIDIA H200",
     .memory_bytes = int64_t{143'771} << 20,  // as nvidia-smi says
     .num_sms = 132,
     .models = kH200},
};

// Sizes, not names: a checkpoint's directory may be called anything.
bool HasSizesOf(const ModelPlan& plan, const char* preset) {
  const ModelPlan known =
      MakeModelPlan(ParseModelConfig(PresetConfig(preset).value(), preset).value()).value();
  return plan.num_layers == known.num_layers && plan.hidden_size == known.hidden_size &&
         plan.vocab_size == known.vocab_size && plan.moe.has_value() == known.moe.has_value() &&
         plan.first_kv_shared_layer == known.first_kv_shared_layer;
}

}  // namespace

void StepWork::AddDecode(int32_t num_cached, int32_t window) {
  ++num_decode_rows;
  num_decode_keys += num_cached;
  num_window_keys += window > 0 ? std::min(num_cached, window) : num_cached;
}

void StepWork::AddPrompt(int32_t num_rows, int32_t num_cached) {
  num_prompt_rows += num_rows;
  num_prompt_keys += num_rows * (num_cached + 0.5 * num_rows);
}

StepWork WorkOf(const StepBatch& batch, int32_t window) {
  StepWork work;
  for (const SequenceStep& step : batch.sequences) {
    if (step.num_rows > 1) {
      work.AddPrompt(step.num_rows, step.num_cached);
    } else {
      work.AddDecode(step.num_cached, window);
    }
  }
  return work;
}

double ModelTimings::Milliseconds(const StepWork& work) const {
  if (work.num_rows() == 0) return 0.0;
  if (work.num_decode_rows == 1 && work.num_prompt_rows == 0) {
    return one_row + one_row_key * work.num_decode_keys;
  }
  return floor + experts * (1.0 - std::exp(-work.num_rows() / expert_rows)) +
         decode_row * work.num_decode_rows + decode_key * work.num_decode_keys +
         window_key * work.num_window_keys + prompt_row * work.num_prompt_rows +
         prompt_key * work.num_prompt_keys;
}

std::vector<std::string> CardNames() {
  std::vector<std::string> names;
  for (const Card& card : kCards) names.emplace_back(card.name);
  return names;
}

Result<const Card*> FindCard(std::string_view name) {
  for (const Card& card : kCards) {
    if (name == card.name) return &card;
  }
  return MakeError("--simulate '{}': steps were measured on {} only", name,
                   fmt::join(CardNames(), ", "));
}

Result<const ModelTimings*> FindTimings(const Card& card, const ModelPlan& plan) {
  std::vector<std::string> presets;
  for (const ModelTimings& timings : card.models) {
    if (HasSizesOf(plan, timings.preset)) return &timings;
    presets.emplace_back(timings.preset);
  }
  return MakeError("--simulate {}: steps of this model were not measured there, only those of {}",
                   card.name, fmt::join(presets, ", "));
}

}  // namespace lapidary::simulated
