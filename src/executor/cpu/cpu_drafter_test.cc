// The drafter against a round of the specification written down once more: plain loops, doubles,
// the head's rows in the order of the token ids.
#include "executor/cpu/cpu_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "executor/cpu/cpu_executor.h"
#include "executor/cpu/naive_decoder.h"
#include "model/assistant_preset.h"
#include "model/presets.h"
#include "model/synthetic_values.h"
#include "model/tensor_sources.h"

namespace lapidary::cpu {
namespace {

using Vec = NaiveDecoder::Vec;

constexpr int kVocab = 64;
constexpr int kNumDrafts = 4;

struct Pair {
  ModelPlan target;
  std::shared_ptr<const TensorSource> target_source;
  DrafterOptions drafter;
  // Of the assistant, the head's rows by token id.
  NaiveTensors tensors;
};

Pair MakePair(const std::string& preset, bool ordered) {
  Json config = *PresetConfig(preset);
  config["head_dim"] = 16;
  config["global_head_dim"] = 32;
  config["sliding_window"] = 7;
  config["vocab_size"] = kVocab;
  config["vocab_size_per_layer_input"] = kVocab;
  config["rms_norm_eps"] = 0.3;  // as large as what it is added to: no factor cancels
  Pair pair;
  ThreadPool threads(1);
  pair.target = MakeModelPlan(ParseModelConfig(config, preset).value()).value();
  pair.target_source = DummySource::Make(pair.target, 11, threads).value();
  Json assistant = TinyAssistantConfig(config, ordered).value();
  pair.drafter.plan =
      PairAssistant(MakeAssistantPlan(ParseAssistantConfig(assistant, "assistant").value()),
                    pair.target)
          .value();
  pair.drafter.source = AssistantSource::MakeDummy(pair.drafter.plan, 11, threads).value();
  const auto by_id =
      DummySource::Make(RequiredTensors(pair.drafter.plan), AssistantSeed(11), threads).value();
  pair.tensors = LoadNaiveTensors(RequiredTensors(pair.drafter.plan), *by_id);
  return pair;
}

double Dot(const Vec& a, const Vec& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

class NaiveRound {
 public:
  // The target has run `prompt`.
  NaiveRound(const Pair& pair, const NaiveDecoder& target, const NaiveTensors& target_tensors,
             size_t prompt_len, int32_t token)
      : pair_(pair),
        plan_(pair.drafter.plan),
        target_(target),
        prompt_len_(prompt_len),
        table_(*target_tensors.at("embed_tokens.weight")),
        token_(token),
        hidden_(target.head_inputs().at(prompt_len - 1)) {}

  // The logits of the next draft, and on with the likeliest.
  Vec Next() {
    Vec input = Slice(table_, token_, pair_.target.hidden_size);
    for (double& value : input) value *= std::sqrt(pair_.target.hidden_size);
    input.insert(input.end(), hidden_.begin(), hidden_.end());
    Vec h = MatVec("pre_projection.weight", input);
    for (const LayerPlan& layer : plan_.decoder.layers) RunLayer(layer, h);
    const Vec y = Norm(h, &Tensor("norm.weight"));
    hidden_ = MatVec("post_projection.weight", y);
    Vec logits = MatVec("embed_tokens.weight", y);
    if (plan_.ordered_head) KeepScored(MatVec(kCentroids, y), logits);
    token_ = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    return logits;
  }

 private:
  static Vec Slice(const Vec& x, int64_t idx, int64_t size) {
    return Vec(x.begin() + idx * size, x.begin() + (idx + 1) * size);
  }
  const Vec& Tensor(const std::string& name) const { return *pair_.tensors.at(name); }
  Vec MatVec(const std::string& name, const Vec& x) const {
    const Vec& w = Tensor(name);
    Vec y;
    for (size_t row = 0; row < w.size() / x.size(); ++row) {
      y.push_back(Dot(Slice(w, static_cast<int64_t>(row), static_cast<int64_t>(x.size())), x));
    }
    return y;
  }
  Vec Norm(Vec x, const Vec* weight) const {
    const double mean = Dot(x, x) / static_cast<double>(x.size());
    for (size_t idx = 0; idx < x.size(); ++idx) {
      x[idx] *= (weight ? (*weight)[idx] : 1.0) / std::sqrt(mean + 0.3f);
    }
    return x;
  }

  void RunLayer(const LayerPlan& layer, Vec& h) const {
    const std::string prefix = fmt::format("layers.{}.", layer.index);
    const auto add = [&](const Vec& x, const char* norm) {
      const Vec normed = Norm(x, &Tensor(prefix + norm));
      for (size_t idx = 0; idx < h.size(); ++idx) h[idx] += normed[idx];
    };
    const Vec u = Norm(h, &Tensor(prefix + "input_layernorm.weight"));
    add(MatVec(prefix + "self_attn.o_proj.weight", Attend(layer, prefix, u)),
        "post_attention_layernorm.weight");
    const Vec n = Norm(h, &Tensor(prefix + "pre_feedforward_layernorm.weight"));
    Vec gate = MatVec(prefix + "mlp.gate_proj.weight", n);
    const Vec up = MatVec(prefix + "mlp.up_proj.weight", n);
    for (size_t idx = 0; idx < gate.size(); ++idx) {
      const double x = gate[idx];
      gate[idx] = 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
      gate[idx] *= up[idx];
    }
    add(MatVec(prefix + "mlp.down_proj.weight", gate), "post_feedforward_layernorm.weight");
    for (double& value : h) value *= Tensor(prefix + "layer_scalar")[0];
  }

  Vec Attend(const LayerPlan& layer, const std::string& prefix, const Vec& u) const {
    // The last owner of the same kind, found the long way.
    int donor = -1;
    for (const LayerPlan& of_target : pair_.target.layers) {
      if (of_target.owns_kv() && of_target.kind == layer.kind) donor = of_target.index;
    }
    const bool is_full = layer.kind == AttentionKind::kFull;
    const size_t position =
        prompt_len_ - (pair_.drafter.position == DraftPosition::kBeforeIt ? 1 : 0);
    const Vec raw = MatVec(prefix + "self_attn.q_proj.weight", u);
    Vec out;
    for (int head = 0; head < layer.num_heads; ++head) {
      Vec q = Norm(Slice(raw, head, layer.head_dim), &Tensor(prefix + "self_attn.q_norm.weight"));
      const int half = layer.head_dim / 2;
      for (int pair = 0; pair < (is_full ? half / 4 : half); ++pair) {
        const double angle = static_cast<double>(position) *
                             std::pow(is_full ? 1e6 : 1e4, -2.0 * pair / layer.head_dim);
        const double a = q[pair], b = q[pair + half];
        q[pair] = a * std::cos(angle) - b * std::sin(angle);
        q[pair + half] = b * std::cos(angle) + a * std::sin(angle);
      }
      const int kv_head = head * layer.num_kv_heads / layer.num_heads;
      Vec sum(layer.head_dim, 0.0);
      double total = 0.0;
      for (size_t key = 0; key < prompt_len_; ++key) {
        if (!is_full && key + 7 <= position) continue;
        const double weight = std::exp(Dot(q, target_.Key(donor, key, kv_head)));
        total += weight;
        const Vec& value = target_.Value(donor, key, kv_head);
        for (size_t idx = 0; idx < sum.size(); ++idx) sum[idx] += weight * value[idx];
      }
      for (double& value : sum) value /= total;
      out.insert(out.end(), sum.begin(), sum.end());
    }
    return out;
  }

  // Everything but the tokens of the best centroids becomes -inf.
  void KeepScored(const Vec& centroids, Vec& logits) const {
    std::vector<int> order(centroids.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return centroids[a] > centroids[b]; });
    const std::vector<int64_t> ordering = SyntheticTokenOrdering(kVocab);
    const int each = plan_.tokens_per_centroid();
    Vec kept(logits.size(), -INFINITY);
    for (int rank = 0; rank < plan_.ordered_head->top_k; ++rank) {
      for (int idx = 0; idx < each; ++idx) {
        const int64_t id = ordering[order[rank] * each + idx];
        kept[id] = logits[id];
      }
    }
    logits = kept;
  }

  const Pair& pair_;
  const AssistantPlan& plan_;
  const NaiveDecoder& target_;
  const size_t prompt_len_;
  const Vec& table_;
  int32_t token_;
  Vec hidden_;
};

std::vector<int32_t> Prompt(int count) {
  std::vector<int32_t> tokens;
  for (int idx = 0; idx < count; ++idx) tokens.push_back((idx * 37 + 5) % kVocab);
  return tokens;
}

// One round behind the prompt; the token it starts from comes first in draft_ids.
StepOutput RunRound(const Pair& pair, const std::vector<int32_t>& prompt,
                    const SamplingParams& sampling = {.temperature = 0.0f}) {
  const KvLayout layout = MakeKvLayout(pair.target, KvFormat::kF32, {4, 8});
  auto executor =
      CpuExecutor::Create(
          pair.target, pair.target_source,
          {.num_threads = 2, .num_pages = 64, .kv_layout = layout, .drafter = pair.drafter})
          .value();
  EXPECT_EQ(executor->max_drafts(), kMaxDrafts);
  for (PageIndex page = 0; page < 64; ++page) executor->kv_memory_for_test().Poison(layout, page);
  PagePool pool(64);
  SequencePages pages(pair.target, layout, pool, /*slack=*/1);
  const auto run = [&](std::vector<int32_t> ids, int32_t num_drafts) {
    StepBatch batch;
    if (pages.length() == 0) {
      batch.bindings.push_back({.sampling = std::make_shared<SamplingParams>(sampling),
                                .prompt_len = static_cast<int32_t>(prompt.size()),
                                .tokens = prompt});
    }
    SequenceStep step;
    step.num_cached = pages.length();
    step.num_rows = static_cast<int32_t>(ids.size());
    step.num_drafts = num_drafts;
    step.num_outputs = 1 + num_drafts;
    step.samples = true;
    EXPECT_TRUE(pages.Reserve(step.num_rows));
    pages.TakeTableChanges(step.slot, batch.table_entries);
    pages.Commit(step.num_rows);
    batch.token_ids = std::move(ids);
    batch.sequences.push_back(step);
    batch.return_drafts = true;
    return executor->Run(std::move(batch));
  };
  const int32_t first = run(prompt, 0).sequences[0].tokens[0].id;
  std::vector<int32_t> ids(1 + kNumDrafts, kTokenFromDrafter);
  ids[0] = kTokenFromSlot;
  StepOutput output = run(ids, kNumDrafts);
  output.draft_ids.insert(output.draft_ids.begin(), first);
  return output;
}

// Some hundred f32 operations per layer, each good to 2^-24, in at most 9 + 4 * kNumDrafts layers.
constexpr double kAgreement = 25 * 100 * 0x1p-24;

TEST(CpuDrafter, AgreesWithTheSpecificationForEveryKindOfTargetHeadAndPosition) {
  for (const char* preset : {"tiny-e", "tiny-moe", "tiny-dense"}) {
    for (const bool ordered : {false, true}) {
      Pair pair = MakePair(preset, ordered);
      const NaiveTensors target_tensors =
          LoadNaiveTensors(RequiredTensors(pair.target), *pair.target_source);
      for (const int prompt_len : {1, 5, 20}) {  // shorter and longer than the window
        const std::vector<int32_t> prompt = Prompt(prompt_len);
        NaiveDecoder target(pair.target, target_tensors);
        target.Run(prompt);
        for (const DraftPosition position :
             {DraftPosition::kOfLastToken, DraftPosition::kBeforeIt}) {
          pair.drafter.position = position;
          const StepOutput output = RunRound(pair, prompt);
          ASSERT_EQ(output.draft_ids.size(), size_t{1 + kNumDrafts});
          NaiveRound round(pair, target, target_tensors, prompt.size(), output.draft_ids[0]);
          for (int draft = 0; draft < kNumDrafts; ++draft) {
            const Vec expected = round.Next();
            double largest = 0.0, difference = 0.0;
            for (int id = 0; id < kVocab; ++id) {
              const float logit = output.draft_logits[draft * kVocab + id];
              ASSERT_EQ(std::isinf(logit), std::isinf(expected[id])) << "token " << id;
              if (std::isinf(logit)) continue;
              largest = std::max(largest, std::abs(expected[id]));
              difference = std::max(difference, std::abs(logit - expected[id]));
            }
            EXPECT_LT(difference / largest, kAgreement)
                << preset << (ordered ? " ordered" : " dense") << ", prompt of " << prompt_len
                << ", draft " << draft;
          }
        }
      }
    }
  }
}

TEST(CpuDrafter, ThePositionAskedFromShows) {
  Pair pair = MakePair("tiny-dense", /*ordered=*/false);
  const StepOutput at = RunRound(pair, Prompt(20));
  pair.drafter.position = DraftPosition::kBeforeIt;
  const StepOutput before = RunRound(pair, Prompt(20));
  double difference = 0.0;
  for (int id = 0; id < kVocab; ++id) {
    difference =
        std::max<double>(difference, std::abs(at.draft_logits[id] - before.draft_logits[id]));
  }
  EXPECT_GT(difference, 1e-2);
}

TEST(CpuDrafter, DrawsWithTheDiceAndTheRulesOfTheTarget) {
  for (const bool ordered : {false, true}) {
    for (const DraftDraw draw : {DraftDraw::kCoupled, DraftDraw::kLikeliest}) {
      Pair pair = MakePair("tiny-dense", ordered);
      pair.drafter.draw = draw;
      SamplingParams sampling = {.temperature = 1.5f,
                                 .top_k = 30,
                                 .repetition_penalty = 1.5f,
                                 .presence_penalty = 1.0f,
                                 .logit_bias = {{9, 3.0f}},
                                 .suppress_tokens = {4, 20},
                                 .seed = 77,
                                 .num_logprobs = 2};
      const std::vector<int32_t> prompt = Prompt(20);
      const StepOutput output = RunRound(pair, prompt, sampling);
      // The token behind the prompt is number 0, the first draft number 1, and each counts for the
      // next.
      PenaltyState history;
      history.AddPrompt(prompt);
      history.AddOutput(output.draft_ids[0]);
      if (draw == DraftDraw::kLikeliest) sampling.temperature = 0.0f;
      Sampler sampler(kVocab);
      for (int draft = 0; draft < kNumDrafts; ++draft) {
        const auto row = std::span(output.draft_logits).subspan(draft * kVocab, kVocab);
        const int32_t expected =
            sampler.Sample(row, sampling, history, static_cast<uint64_t>(draft) + 1)->id;
        EXPECT_EQ(output.draft_ids[draft + 1], expected) << "draft " << draft;
        history.AddOutput(expected);
      }
    }
  }
}

}  // namespace
}  // namespace lapidary::cpu
