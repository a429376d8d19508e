#include "kv/resumable_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <set>

#include "kv/prefix_cache.h"
#include "model/presets.h"

namespace lapidary {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

ModelPlan TinyPlan() {  // Its window is 24.
  return MakeModelPlan(ParseModelConfig(*PresetConfig("tiny-e"), "tiny-e").value()).value();
}

struct Text {
  std::vector<int32_t> ids;
  PrefixIdentity identity;
};

// A router's index of one server, by the events alone.
class Subscriber {
 public:
  void Hear(const BlockEvent& event, int32_t tokens_per_block) {
    switch (event.kind) {
      case BlockEvent::Kind::kCleared:
        parents_.clear();
        break;
      case BlockEvent::Kind::kStored: {
        ASSERT_EQ(event.tokens.size(), event.hashes.size() * tokens_per_block);
        ASSERT_EQ(event.extras.size(), event.hashes.size());
        std::optional<uint64_t> parent = event.parent;
        for (const uint64_t hash : event.hashes) {
          ASSERT_TRUE(!parent || parents_.contains(*parent)) << "stored before its parent";
          ASSERT_TRUE(parents_.emplace(hash, parent).second) << "stored twice";
          parent = hash;
        }
        break;
      }
      case BlockEvent::Kind::kRemoved:
        for (const uint64_t hash : event.hashes) {
          ASSERT_EQ(parents_.erase(hash), 1u) << "removed, and was not there";
          for (const auto& [child, parent] : parents_) ASSERT_NE(parent, hash) << "removed early";
        }
    }
  }
  std::set<uint64_t> blocks() const {
    std::set<uint64_t> blocks;
    for (const auto& [hash, parent] : parents_) blocks.insert(hash);
    return blocks;
  }

 private:
  std::map<uint64_t, std::optional<uint64_t>> parents_;
};

// A cache, the events that it gives, and who hears them.
class Server {
 public:
  Server(std::array<int, kNumKvGroups> tokens_per_page, int num_pages, uint64_t seed)
      : layout_(MakeKvLayout(plan_, KvFormat::kF32, tokens_per_page)),
        pool_(num_pages),
        seed_(seed) {
    cache_.set_observer(&queue_);
  }

  PrefixHashes HashesOf(const Text& text) const {
    PrefixHashes hashes(seed_, text.identity);
    hashes.Extend(text.ids);
    return hashes;
  }

  PageIndex Allocate(int group_idx) {
    if (pool_.num_free() == 0) cache_.EvictOne();
    return pool_.Allocate(group_idx);
  }

  // Leaves the pages of a text's first `length` tokens, the sliding ones from `first_sliding` on;
  // each at once, or in pieces.
  void Leave(const Text& text, int32_t length, int32_t first_sliding = 0, int num_pieces = 1) {
    const PrefixHashes hashes = HashesOf(text);
    std::vector<std::array<int32_t, 3>> pages;  // group, block, page
    ++writer_;
    for (int piece = 1; piece <= num_pieces; ++piece) {
      const int32_t end = length * piece / num_pieces;
      for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
        const int32_t tokens = layout_.tokens_per_page[group_idx];
        int32_t block = group_idx == kSlidingGroup ? first_sliding / tokens : 0;
        for (; block * tokens < end; ++block) {
          const auto held = std::ranges::find_if(
              pages, [&](const auto& page) { return page[0] == group_idx && page[1] == block; });
          PageIndex page = held == pages.end() ? Allocate(group_idx) : (*held)[2];
          if (page == kScratchPage) break;
          if (held == pages.end()) pages.push_back({group_idx, block, page});
          cache_.Keep(group_idx, block, page, hashes, end, writer_, text.ids);
        }
      }
    }
    for (auto page = pages.rbegin(); page != pages.rend(); ++page) pool_.Free((*page)[2]);
  }

  std::vector<BlockEvent> TakeEvents() {
    queue_.HandOverAll();
    CacheChanges changes;
    if (!queue_.Take(&changes)) return {};
    std::vector<BlockEvent> events = blocks_.Apply(changes);
    for (const BlockEvent& event : events) subscriber_.Hear(event, layout_.tokens_per_page[1]);
    EXPECT_EQ(subscriber_.blocks().size(), blocks_.num_blocks());
    return events;
  }

  // What the cache has of these texts, by asking it.
  std::set<uint64_t> ResumableBlocksOf(const std::vector<Text>& texts) const {
    std::set<uint64_t> blocks;
    for (const Text& text : texts) {
      Text prompt = text;
      prompt.ids.push_back(100000);  // Of a whole prompt one token is computed.
      const auto resumable = [&](int32_t position) {
        for (const MediaDigest& medium : text.identity.media) {
          const bool is_inside = medium.position < position && position < medium.end();
          if (medium.is_whole && is_inside) return medium.position;
        }
        return position;
      };
      const int32_t length = cache_.Find(HashesOf(prompt), resumable).length;
      for (const uint64_t name : NamesOf(text, length)) blocks.insert(name);
    }
    return blocks;
  }
  std::vector<uint64_t> NamesOf(const Text& text, int32_t length) const {
    PrefixHashes unseeded(0, text.identity);
    unseeded.Extend(text.ids);
    std::vector<uint64_t> names;
    const int32_t tokens = layout_.tokens_per_page[kFullGroup];
    for (int32_t end = tokens; end <= length; end += tokens) {
      names.push_back(unseeded.Of(end).low);
    }
    return names;
  }

  PrefixCache& cache() { return cache_; }
  PagePool& pool() { return pool_; }
  const Subscriber& subscriber() const { return subscriber_; }
  uint64_t last_writer() const { return writer_; }

 private:
  const ModelPlan plan_ = TinyPlan();
  const KvLayout layout_;
  CacheChangeQueue queue_;
  PagePool pool_;
  PrefixCache cache_{plan_, layout_, pool_};
  ResumableBlocks blocks_{plan_, layout_};
  Subscriber subscriber_;
  const uint64_t seed_;
  uint64_t writer_ = 0;
};

std::vector<int32_t> RandomIds(std::mt19937& random, int count) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 50);
  return ids;
}

// The start of another text, then tokens of its own.
Text Branch(std::mt19937& random, const Text& other, int32_t cut) {
  for (const MediaDigest& medium : other.identity.media) {
    if (medium.position < cut && cut < medium.end()) cut = medium.position;
  }
  Text text = other;
  text.ids.resize(cut);
  std::erase_if(text.identity.media, [&](const MediaDigest& m) { return m.position >= cut; });
  const int num_more = static_cast<int>(1 + random() % 60);
  if (random() % 3 == 0 && num_more > 12) {
    const bool is_whole = random() % 2 == 0;
    const auto first = static_cast<int32_t>(cut + random() % 10);
    text.identity.media.push_back({.position = first,
                                   .low = random() % 2,
                                   .high = 5,
                                   .num_tokens = cut + num_more - first - 1,
                                   .is_whole = is_whole});
  }
  for (const int32_t id : RandomIds(random, num_more)) text.ids.push_back(id);
  return text;
}

class AnyLayout : public testing::TestWithParam<std::array<int, kNumKvGroups>> {};

TEST_P(AnyLayout, ASubscriberHasExactlyTheBlocksThatPromptsCanGoOnBehind) {
  std::mt19937 random(3);
  size_t most_blocks = 0;
  int num_removed = 0;
  for (int round = 0; round < 25; ++round) {
    Server server(GetParam(), /*num_pages=*/40 + 20 * (round % 4), /*seed=*/round);
    std::vector<Text> texts = {{RandomIds(random, 80), {}}};
    texts.push_back({texts[0].ids, {.salt = "mine"}});
    for (int step = 0; step < 120; ++step) {
      const Text& old = texts[random() % texts.size()];
      const int32_t length = static_cast<int32_t>(old.ids.size());
      switch (random() % 8) {
        case 0:
        case 1:
          if (texts.size() < 30) texts.push_back(Branch(random, old, random() % length));
          break;
        case 2:  // A page goes that was not the next.
          if (const auto page = static_cast<PageIndex>(1 + random() % 39);
              server.pool().is_kept(page)) {
            server.cache().Drop(page);
          }
          break;
        case 3:
          for (int count = random() % 12; count > 0; --count) server.cache().EvictOne();
          break;
        case 4:
          if (random() % 4 == 0) server.cache().DropWrittenBy(server.last_writer());
          if (random() % 40 == 0) server.cache().Clear();
          break;
        default: {
          const auto end = static_cast<int32_t>(1 + random() % length);
          const int32_t first = random() % 2 == 0 ? 0 : static_cast<int32_t>(random() % end);
          server.Leave(old, random() % 3 == 0 ? end : length, first, 1 + random() % 3);
        }
      }
      if (random() % 3 == 0) continue;  // Several changes at once.
      for (const BlockEvent& event : server.TakeEvents()) {
        if (event.kind == BlockEvent::Kind::kRemoved) num_removed += std::ssize(event.hashes);
      }
      if (HasFatalFailure()) return;
      const std::set<uint64_t> expected = server.ResumableBlocksOf(texts);
      ASSERT_EQ(server.subscriber().blocks(), expected) << "round " << round << ", step " << step;
      most_blocks = std::max(most_blocks, expected.size());
    }
  }
  // It was not trivial.
  EXPECT_GT(most_blocks, 100u / GetParam()[kFullGroup]);
  EXPECT_GT(num_removed, 200 / GetParam()[kFullGroup]);
}

INSTANTIATE_TEST_SUITE_P(ResumableBlocks, AnyLayout,
                         testing::ValuesIn(std::vector<std::array<int, kNumKvGroups>>{
                             {4, 8}, {3, 8}, {5, 7}, {8, 4}, {16, 16}, {2, 20}, {11, 3}}));

constexpr std::array<int, kNumKvGroups> kLayout = {4, 8};

Text Counting(int32_t first, int count) {
  Text text;
  for (int32_t id = first; id < first + count; ++id) text.ids.push_back(id);
  return text;
}

TEST(ResumableBlocks, BlocksOfOnePromptAreOneEventThatNamesTheBlockBeforeThem) {
  Server server(kLayout, 100, /*seed=*/7);
  const Text text = Counting(0, 60);
  const std::vector<uint64_t> names = server.NamesOf(text, 60);
  server.Leave(text, 28);
  std::vector<BlockEvent> events = server.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, BlockEvent::Kind::kStored);
  EXPECT_THAT(events[0].hashes, ElementsAre(names[0], names[1], names[2]));
  EXPECT_EQ(events[0].parent, std::nullopt);
  EXPECT_EQ(events[0].tokens, Counting(0, 24).ids);
  server.Leave(text, 44);
  events = server.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_THAT(events[0].hashes, ElementsAre(names[3], names[4]));
  EXPECT_EQ(events[0].parent, names[2]);
  EXPECT_EQ(events[0].tokens, Counting(24, 16).ids);
}

TEST(ResumableBlocks, WithoutTheirWindowBlocksDoNotCountUntilOneBehindThemHasOne) {
  Server server(kLayout, 100, /*seed=*/7);
  const Text text = Counting(0, 90);
  server.Leave(text, 60, /*first_sliding=*/48);
  EXPECT_THAT(server.TakeEvents(), IsEmpty());
  server.Leave(text, 90, /*first_sliding=*/48);
  const std::vector<BlockEvent> events = server.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].hashes, server.NamesOf(text, 90));
  // With the last window they are withdrawn, all of them, the last first.
  while (server.cache().EvictOne()) {
  }
  const std::vector<BlockEvent> gone = server.TakeEvents();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].kind, BlockEvent::Kind::kRemoved);
  std::vector<uint64_t> names = server.NamesOf(text, 90);
  std::ranges::reverse(names);
  EXPECT_EQ(gone[0].hashes, names);
}

TEST(ResumableBlocks, TwoServersGiveEqualPrefixesEqualNames) {
  Server one(kLayout, 100, /*seed=*/7);
  Server other(kLayout, 60, /*seed=*/123456);
  other.Leave(Counting(500, 30), 30);
  other.TakeEvents();
  for (Server* server : {&one, &other}) server->Leave(Counting(0, 50), 50);
  const std::vector<BlockEvent> events = one.TakeEvents();
  const std::vector<BlockEvent> others = other.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  ASSERT_EQ(others.size(), 1u);
  EXPECT_EQ(events[0].hashes, others[0].hashes);
  EXPECT_EQ(events[0].hashes.size(), 6u);
}

TEST(ResumableBlocks, SaltMediaAndAdapterMakeOtherNamesAndAreToldWithTheirBlocks) {
  Server server(kLayout, 200, /*seed=*/7);
  std::vector<Text> texts(5, Counting(0, 40));
  texts[1].identity.salt = "mine";
  texts[2].identity.media = {{.position = 6, .low = 1, .high = 2, .num_tokens = 12}};
  texts[3].identity.media = {{.position = 6, .low = 1, .high = 3, .num_tokens = 12}};
  texts[4].identity.adapter = 9;
  std::set<uint64_t> names;
  for (const Text& text : texts) {
    server.Leave(text, 40);
    const std::vector<BlockEvent> events = server.TakeEvents();
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].hashes, server.NamesOf(text, 40));
    names.insert(events[0].hashes.begin(), events[0].hashes.end());
    const std::vector<BlockEvent::Extra>& extras = events[0].extras;
    ASSERT_EQ(extras.size(), 5u);
    EXPECT_EQ(extras[0].salt, text.identity.salt);
    EXPECT_EQ(extras[1].salt, "");
    // Tokens 6 to 17: in the first three blocks.
    for (size_t block = 0; block < 5; ++block) {
      const bool has_medium = !text.identity.media.empty() && block < 3;
      ASSERT_EQ(extras[block].media.size(), has_medium ? 1 : 0);
      EXPECT_EQ(extras[block].start, 8 * block);
      if (!has_medium) continue;
      EXPECT_EQ(extras[block].media[0].high, text.identity.media[0].high);
    }
  }
  EXPECT_EQ(names.size(), 25u);
}

TEST(ResumableBlocks, AClearedCacheIsToldInAWord) {
  Server server(kLayout, 100, /*seed=*/7);
  server.Leave(Counting(0, 50), 50);
  EXPECT_EQ(server.TakeEvents().size(), 1u);
  server.cache().Clear();
  server.Leave(Counting(700, 20), 20);
  const std::vector<BlockEvent> events = server.TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, BlockEvent::Kind::kCleared);
  EXPECT_EQ(events[1].kind, BlockEvent::Kind::kStored);
  EXPECT_EQ(server.subscriber().blocks().size(), 2u);
}

TEST(ResumableBlocks, OfManyPromptsThatPartInOneBlockNothingIsLeftBehind) {
  Server server(kLayout, 1000, /*seed=*/7);
  std::vector<Text> texts;
  for (int idx = 0; idx < 100; ++idx) {
    texts.push_back(Counting(0, 18));
    texts.back().ids.push_back(1000 + idx);
    server.Leave(texts.back(), 19);
    server.TakeEvents();
  }
  EXPECT_EQ(server.subscriber().blocks(), server.ResumableBlocksOf(texts));
  EXPECT_EQ(server.subscriber().blocks().size(), 2u);
  // The full pages go first, then what looked through them.
  for (const int group_idx : {kFullGroup, kSlidingGroup}) {
    for (PageIndex page = 1; page < 1000; ++page) {
      if (!server.pool().is_kept(page) || server.cache().kept().group(page) != group_idx) continue;
      server.cache().Drop(page);
      server.TakeEvents();
    }
    EXPECT_TRUE(server.subscriber().blocks().empty());
  }
}

TEST(ResumableBlocks, NoPromptGoesOnInsideAnImage) {
  Server server(kLayout, 100, /*seed=*/7);
  Text text = Counting(0, 60);
  text.identity.media = {{.position = 10, .low = 1, .high = 2, .num_tokens = 26, .is_whole = true}};
  server.Leave(text, 30);
  std::vector<BlockEvent> events = server.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].hashes, server.NamesOf(text, 10));
  server.Leave(text, 38);
  events = server.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].hashes.size(), 3u);
}

}  // namespace
}  // namespace lapidary
