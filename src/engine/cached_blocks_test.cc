// What routers are told of the prefix cache against what requests find in it.
#include <deque>
#include <iostream>
#include <set>

#include "engine/scheduler_harness.h"
#include "kv/resumable_blocks.h"

namespace lapidary {
namespace {

constexpr int kVocabulary = 500;

// A router's index of one server.
class Router {
 public:
  Router(const ModelPlan& plan, std::array<int, kNumKvGroups> tokens_per_page, Harness& harness)
      : harness_(harness),
        plan_(plan),
        layout_(MakeKvLayout(plan_, KvFormat::kF32, tokens_per_page)) {
    harness_.scheduler().set_cache_observer(&queue_);
  }
  ~Router() { harness_.scheduler().set_cache_observer(nullptr); }

  void Hear() {
    queue_.HandOverAll();
    CacheChanges changes;
    if (!queue_.Take(&changes)) return;
    for (const BlockEvent& event : index_.Apply(changes)) {
      if (event.kind == BlockEvent::Kind::kCleared) blocks_.clear();
      for (const uint64_t hash : event.hashes) {
        const bool is_stored = event.kind == BlockEvent::Kind::kStored;
        ASSERT_EQ(is_stored ? blocks_.insert(hash).second : blocks_.erase(hash) > 0, true);
        num_removed_ += is_stored ? 0 : 1;
      }
    }
  }
  int32_t Predict(const std::vector<int32_t>& prompt) const {
    const int32_t tokens = layout_.tokens_per_page[kFullGroup];
    PrefixHashes hashes(0, {});
    hashes.Extend(prompt);
    int32_t length = 0;
    while (length + tokens <= hashes.length() && blocks_.contains(hashes.Of(length + tokens).low)) {
      length += tokens;
    }
    return length;
  }
  const std::set<uint64_t>& blocks() const { return blocks_; }
  int64_t num_removed() const { return num_removed_; }
  int32_t tokens_per_block() const { return layout_.tokens_per_page[kFullGroup]; }

 private:
  Harness& harness_;
  const ModelPlan plan_;
  const KvLayout layout_;
  CacheChangeQueue queue_;
  ResumableBlocks index_{plan_, layout_};
  std::set<uint64_t> blocks_;
  int64_t num_removed_ = 0;
};

std::vector<int32_t> Joined(std::vector<int32_t> first, const std::vector<int32_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(CachedBlocks, AfterTenThousandRandomRequestsTheRouterHasTheBlocksThatCanBeResumed) {
  constexpr std::array<int, kNumKvGroups> kTokens = {4, 8};
  SchedulerLimits limits;
  limits.max_num_seqs = 6;
  limits.max_num_batched_tokens = 48;
  limits.num_drafts = 3;
  Harness harness(/*num_pages=*/160, limits, /*overlap=*/true, kTokens);
  Router router(TinyPlan(), kTokens, harness);
  std::mt19937 random(11);
  const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
  std::map<SequenceId, std::vector<int32_t>> prompts;  // the last ones
  std::deque<std::vector<int32_t>> texts;              // with their answers
  texts.push_back(RandomIds(random, 30, kVocabulary));
  size_t most_blocks = 0;
  const auto check = [&] {
    router.Hear();
    std::set<uint64_t> expected;
    std::vector<std::vector<int32_t>> all(texts.begin(), texts.end());
    for (const auto& [id, prompt] : prompts) all.push_back(Joined(prompt, harness.outputs_[id]));
    for (const std::vector<int32_t>& text : all) {
      PrefixHashes seeded(kHashSeed, {});
      seeded.Extend(Joined(text, {kVocabulary}));
      const int32_t length = harness.scheduler().prefix_cache().Find(seeded).length;
      PrefixHashes unseeded(0, {});
      unseeded.Extend(text);
      for (int32_t end = kTokens[1]; end <= length; end += kTokens[1]) {
        expected.insert(unseeded.Of(end).low);
      }
    }
    ASSERT_EQ(router.blocks(), expected);
    most_blocks = std::max(most_blocks, expected.size());
  };
  for (int request = 0; request < 10'000; ++request) {
    std::vector<int32_t> prompt;
    if (below(3) > 0) prompt = texts[texts.size() - 1 - below(std::min<int>(texts.size(), 12))];
    if (below(4) == 0 && !prompt.empty()) prompt.resize(1 + below(prompt.size()));
    if (prompt.size() > 120) prompt.resize(40);
    prompt = Joined(std::move(prompt), RandomIds(random, 1 + below(40), kVocabulary));
    SequenceSpec spec = Harness::Spec(prompt, 1 + below(12));
    if (below(2) == 0) spec.cache_points.clear();
    const SequenceId id = harness.Add(std::move(spec)).value();
    prompts[id] = std::move(prompt);
    if (below(40) == 0) harness.scheduler().Cancel(id);
    if (below(400) == 0) harness.scheduler().ClearPrefixCache();
    for (int turn = below(12); turn > 0; --turn) harness.Turn();
    if (below(3) == 0) router.Hear();
    for (auto it = prompts.begin(); it != prompts.end();) {
      if (harness.scheduler().Find(it->first) != nullptr) {
        ++it;
        continue;
      }
      texts.push_back(Joined(it->second, harness.outputs_[it->first]));
      it = prompts.erase(it);
    }
    // No page is older.
    while (texts.size() > 600) texts.pop_front();
    if (request % 50 == 0) check();
    if (HasFatalFailure()) return;
  }
  harness.RunToEnd();
  for (const auto& [id, prompt] : prompts) texts.push_back(Joined(prompt, harness.outputs_[id]));
  prompts.clear();
  check();
  std::cout << "at most " << most_blocks << " blocks, " << router.num_removed() << " withdrawn, "
            << harness.scheduler().stats().num_evicted_pages << " pages given up\n";
  EXPECT_GT(most_blocks, 20u);
  EXPECT_GT(router.num_removed(), 1000);
}

TEST(CachedBlocks, OfAppendOnlyTurnsARouterPredictsWhatIsCachedWithinABlock) {
  const ModelPlan plan =
      MakeModelPlan(ParseModelConfig(*PresetConfig("26b-a4b"), "26b-a4b").value()).value();
  const std::array<int, kNumKvGroups> tokens_per_page =
      MakeKvLayout(plan, KvFormat::kBF16).tokens_per_page;
  SchedulerLimits limits;
  limits.max_num_batched_tokens = 2048;
  // Room for two thirds of the conversations.
  Harness harness(/*num_pages=*/1200, limits, /*overlap=*/true, tokens_per_page, plan);
  Router router(plan, tokens_per_page, harness);
  std::mt19937 random(12);
  std::vector<std::vector<int32_t>> conversations(20);
  int num_turns = 0;
  int num_right = 0;
  int num_hits = 0;
  int num_misses = 0;
  for (int turn = 0; turn < 400; ++turn) {
    std::vector<int32_t>& conversation = conversations[random() % conversations.size()];
    if (conversation.size() > 6000) conversation.clear();
    const bool goes_on = !conversation.empty();
    conversation = Joined(std::move(conversation),
                          RandomIds(random, static_cast<int>(50 + random() % 600), kVocabulary));
    router.Hear();
    const int32_t predicted = router.Predict(conversation);
    const uint64_t before = harness.scheduler().stats().num_prefix_hit_tokens;
    const int num_new = static_cast<int>(10 + random() % 200);
    const SequenceId id = harness.Add(Harness::Spec(conversation, num_new)).value();
    harness.RunToEnd();
    const auto cached =
        static_cast<int32_t>(harness.scheduler().stats().num_prefix_hit_tokens - before);
    conversation = Joined(std::move(conversation), harness.outputs_[id]);
    if (!goes_on) continue;
    ++num_turns;
    num_right += std::abs(cached - predicted) <= router.tokens_per_block() ? 1 : 0;
    (cached > 0 ? num_hits : num_misses) += 1;
  }
  std::cout << num_right << " of " << num_turns << " right, " << num_hits << " hits, " << num_misses
            << " misses\n";
  EXPECT_GE(num_right, 0.99 * num_turns);
  EXPECT_GT(num_hits, 100);
  EXPECT_GT(num_misses, 20);
}

}  // namespace
}  // namespace lapidary
