// How much of what prompts have in common is really found again, on traces of kinds that are known
// from practice, against an oracle that forgets nothing: the longest prefix a prompt shares with
// any earlier prompt and answer. Counts tokens; no model, the page layout and the window of the
// 26B.
#include <iostream>

#include "engine/scheduler_harness.h"

namespace lapidary {
namespace {

constexpr int kVocabulary = 500;

class Reuse {
 public:
  // Prompts without cache points: where they will part is not known.
  explicit Reuse(int num_pages, std::string name)
      : name_(std::move(name)),
        plan_(MakeModelPlan(ParseModelConfig(*PresetConfig("26b-a4b"), "26b-a4b").value()).value()),
        tokens_per_page_(MakeKvLayout(plan_, KvFormat::kBF16).tokens_per_page),
        harness_(num_pages, Limits(), /*overlap=*/true, tokens_per_page_, plan_) {}

  ~Reuse() {
    std::cout << name_ << ": " << num_prompt_tokens_ << " prompt tokens, " << 100 * share()
              << "% found, " << 100 * oracle_share() << "% by the oracle, "
              << harness_.scheduler().stats().num_evicted_pages << " pages given up\n";
  }

  // The prompt and its answer.
  std::vector<int32_t> Ask(const std::vector<int32_t>& prompt, int num_new) {
    int32_t shared = 0;
    for (const std::vector<int32_t>& other : seen_) {
      const auto parting = std::mismatch(prompt.begin(), prompt.end(), other.begin(), other.end());
      shared = std::max(shared, static_cast<int32_t>(parting.first - prompt.begin()));
    }
    num_oracle_tokens_ += std::min(shared, static_cast<int32_t>(prompt.size()) - 1);
    num_prompt_tokens_ += prompt.size();
    const uint64_t before = num_found();
    SequenceSpec spec = Harness::Spec(prompt, num_new);
    spec.cache_points.clear();
    spec.cache_at_end = false;
    const SequenceId id = harness_.Add(std::move(spec)).value();
    harness_.RunToEnd();
    last_found_ = static_cast<int32_t>(num_found() - before);
    const std::vector<int32_t>& answer = harness_.outputs_[id];
    EXPECT_EQ(answer, FakeExecutor::Continuation(prompt, num_new, harness_.vocab_size()));
    seen_.push_back(prompt);
    seen_.back().insert(seen_.back().end(), answer.begin(), answer.end());
    return seen_.back();
  }

  std::vector<int32_t> Text(int num_tokens) { return RandomIds(random_, num_tokens, kVocabulary); }
  int Random(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1));
  }

  double share() const {
    return static_cast<double>(num_found()) / static_cast<double>(num_prompt_tokens_);
  }
  double oracle_share() const {
    return static_cast<double>(num_oracle_tokens_) / static_cast<double>(num_prompt_tokens_);
  }
  int32_t last_found() const { return last_found_; }
  uint64_t num_evicted() const { return harness_.scheduler().stats().num_evicted_pages; }

 private:
  static SchedulerLimits Limits() {
    SchedulerLimits limits;
    limits.max_num_batched_tokens = 2048;
    return limits;
  }
  uint64_t num_found() const { return harness_.scheduler().stats().num_prefix_hit_tokens; }

  const std::string name_;
  const ModelPlan plan_;
  const std::array<int, kNumKvGroups> tokens_per_page_;
  mutable Harness harness_;
  std::mt19937 random_{5};
  std::vector<std::vector<int32_t>> seen_;
  uint64_t num_prompt_tokens_ = 0;
  uint64_t num_oracle_tokens_ = 0;
  int32_t last_found_ = 0;
};

std::vector<int32_t> Joined(std::vector<int32_t> first, const std::vector<int32_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(PrefixReuse, ADocumentWithAnotherQuestionBehindItInOneMessageIsComputedOnce) {
  Reuse reuse(1000, "a document, another question");
  const std::vector<int32_t> document = reuse.Text(2600);
  reuse.Ask(Joined(document, reuse.Text(46)), 30);
  const std::vector<int32_t> second = Joined(document, reuse.Text(46));
  reuse.Ask(second, 30);
  EXPECT_EQ(reuse.last_found(), 2600);
  EXPECT_GE(reuse.last_found(), 0.95 * static_cast<double>(second.size()));
}

TEST(PrefixReuse, AnIdenticalCompletionIsComputedOnce) {
  Reuse reuse(1000, "an identical completion");
  const std::vector<int32_t> prompt = reuse.Text(2633);
  reuse.Ask(prompt, 30);
  reuse.Ask(prompt, 30);
  EXPECT_EQ(reuse.last_found(), 2632);
}

void FewShot(Reuse& reuse) {
  const std::vector<int32_t> examples = reuse.Text(1500);
  for (int question = 0; question < 50; ++question) {
    reuse.Ask(Joined(examples, reuse.Text(reuse.Random(30, 90))), 20);
  }
}

void Rag(Reuse& reuse) {
  const std::vector<int32_t> system = reuse.Text(300);
  std::vector<std::vector<int32_t>> documents;
  for (int idx = 0; idx < 20; ++idx) {
    documents.push_back(Joined(system, reuse.Text(reuse.Random(800, 2400))));
  }
  for (int question = 0; question < 60; ++question) {
    const size_t document = question < 20 ? question : reuse.Random(0, 19);
    reuse.Ask(Joined(documents[document], reuse.Text(reuse.Random(20, 80))), 40);
  }
}

// Agents that go on from any earlier place: of a message's end, or amid one that they change.
void Branching(Reuse& reuse) {
  std::vector<std::vector<int32_t>> histories = {reuse.Text(600)};
  for (int step = 0; step < 60; ++step) {
    std::vector<int32_t> prompt = histories[reuse.Random(0, std::ssize(histories) - 1)];
    if (step % 3 == 2) prompt.resize(reuse.Random(400, static_cast<int>(prompt.size())));
    histories.push_back(reuse.Ask(Joined(prompt, reuse.Text(reuse.Random(20, 300))), 60));
  }
}

TEST(PrefixReuse, FewShotPromptsThatFitAreFoundAsByAnOracle) {
  Reuse reuse(2000, "few-shot, 50 questions");
  FewShot(reuse);
  EXPECT_GE(reuse.share(), reuse.oracle_share() - 0.02);
  EXPECT_GT(reuse.oracle_share(), 0.9);
  EXPECT_EQ(reuse.num_evicted(), 0u);
}

TEST(PrefixReuse, QuestionsOverTwentyDocumentsThatFitAreFoundAsByAnOracle) {
  Reuse reuse(5000, "20 documents, 60 questions");
  Rag(reuse);
  EXPECT_GE(reuse.share(), reuse.oracle_share() - 0.02);
  EXPECT_GT(reuse.oracle_share(), 0.6);
  EXPECT_EQ(reuse.num_evicted(), 0u);
}

TEST(PrefixReuse, AgentsThatBranchAnywhereAreFoundAsByAnOracle) {
  Reuse reuse(5000, "branching agents");
  Branching(reuse);
  EXPECT_GE(reuse.share(), reuse.oracle_share() - 0.02);
  EXPECT_GT(reuse.oracle_share(), 0.7);
  EXPECT_EQ(reuse.num_evicted(), 0u);
}

// A pool for a third of what all of it takes: ends of prompts stay, the way to them goes.
TEST(PrefixReuse, WithoutRoomForAllTheEndsOfPromptsStay) {
  Reuse documents(2000, "20 documents, pages for half");
  Rag(documents);
  EXPECT_GT(documents.num_evicted(), 0u);
  EXPECT_GE(documents.share(), documents.oracle_share() - 0.1);
  Reuse examples(300, "few-shot, 300 pages");
  FewShot(examples);
  EXPECT_GT(examples.num_evicted(), 0u);
  EXPECT_GE(examples.share(), examples.oracle_share() - 0.02);
}

}  // namespace
}  // namespace lapidary
