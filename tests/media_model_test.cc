// Whole models with pictures and sounds: logits and greedy tokens against transformers', and the
// same through the engine with its prefix cache.
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <map>

#include "base/read_file.h"
#include "engine/engine.h"
#include "engine/single_sequence.h"
#include "load/load_model.h"
#include "media/decode_audio.h"
#include "media/decode_image.h"
#include "session/prompt_media.h"
#include "tests/golden_file.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

constexpr double kLogitTolerance = 1e-4;  // of the largest logit
constexpr int kBudget = 70;
const std::vector<std::string> kFiles = {"turned.jpg", "alpha.png", "tune.wav", "short.wav"};

std::string TestFile(const std::string& name) {
  return ReadFile(std::string(LAPIDARY_SOURCE_DIR) + "/tests/data/media/" + name, 1 << 20).value();
}

class MediaModelTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    path_ = MakeTestModel(GetParam(), OptionsOf(golden_), directory_);
    description_ = DescribeModel(path_.string()).value();
    const TowersPlan towers = MakeTowersPlan(description_.config, GetParam()).value();
    encoder_ =
        MediaEncoder::Load(towers, path_, towers.has_vision(), towers.has_audio(), 2).value();
    options_.num_threads = 2;
    options_.max_tokens = 400;
    options_.num_sequences = 4;
    options_.drafting.enabled = false;
    prompts_ = {"one", "two"};
    if (towers.has_audio()) prompts_.push_back("all");
  }

  NamedMedium Encode(const std::string& name) {
    auto medium = name.ends_with(".wav")
                      ? encoder_->EncodeAudio(DecodeAudio(TestFile(name)).value())
                      : encoder_->EncodeImage(DecodeImage(TestFile(name)).value(), kBudget);
    return {name, std::move(medium).value()};
  }
  PlacedMedia MediaOf(const std::string& prompt) {
    PromptMedia media;
    for (const int32_t file : golden_.Ids(prompt + ".files")) {
      (kFiles[file].ends_with(".wav") ? media.audio : media.images).push_back(Encode(kFiles[file]));
    }
    auto placed = PlaceMedia(description_.plan, golden_.Ids(prompt + ".ids"), media);
    CHECK(placed.ok()) << placed.error().message;
    placed->media.clear();  // they end here
    return std::move(placed).value();
  }
  // Greedy, but never a placeholder: it would stand for nothing.
  std::shared_ptr<SamplingParams> Greedy() const {
    auto sampling = std::make_shared<SamplingParams>();
    sampling->temperature = 0.0f;
    const MediaTokens& tokens = *description_.plan.media_tokens;
    sampling->suppress_tokens = {tokens.image, tokens.audio, tokens.video};
    return sampling;
  }
  LoadedModel LoadCpu() { return LoadModel(description_, options_).value(); }

  const Golden golden_ = OpenGolden(GetParam());
  const TemporaryDirectory directory_;
  std::filesystem::path path_;
  ModelDescription description_;
  std::unique_ptr<MediaEncoder> encoder_;
  LoadOptions options_;
  std::vector<std::string> prompts_;
};

TEST_P(MediaModelTest, LogitsAreTheReferencesInChunksOfAnySize) {
  const int64_t vocab = description_.plan.vocab_size;
  for (const std::string& prompt : prompts_) {
    const PlacedMedia placed = MediaOf(prompt);
    const std::vector<int32_t> ids = golden_.Ids(prompt + ".ids");
    const std::vector<int32_t> rows = golden_.Ids(prompt + ".rows");
    const float* expected = golden_.Tensor(prompt + ".logits").As<float>();
    std::map<int, std::vector<float>> wholes;  // by the number of ranks
    for (const auto& [num_ranks, chunk_rows] : std::vector<std::pair<int, int32_t>>{
             {1, 512}, {1, 17}, {1, 1}, {2, 512}, {2, 17}, {4, 17}}) {
      std::vector<float>& whole = wholes[num_ranks];
      options_.num_ranks = num_ranks;
      LoadedModel model = LoadCpu();
      SingleSequence sequence(*model.executor, chunk_rows, nullptr, 0, placed.runs);
      std::vector<float> logits;
      const Status status = sequence.Append(ids, [&](std::span<const float> chunk) -> Status {
        logits.insert(logits.end(), chunk.begin(), chunk.end());
        return {};
      });
      ASSERT_TRUE(status.ok()) << status.error().message;
      ASSERT_EQ(static_cast<int64_t>(logits.size()), std::ssize(ids) * vocab);
      double largest = 0.0;
      double worst = 0.0;
      for (size_t row_idx = 0; row_idx < rows.size(); ++row_idx) {
        for (int64_t token = 0; token < vocab; ++token) {
          const double reference = expected[row_idx * vocab + token];
          largest = std::max(largest, std::abs(reference));
          worst = std::max(worst, std::abs(logits[rows[row_idx] * vocab + token] - reference));
        }
      }
      EXPECT_LE(worst / largest, kLogitTolerance) << prompt << " in chunks of " << chunk_rows;
      if (whole.empty()) whole = logits;
      EXPECT_EQ(logits, whole) << prompt << " in chunks of " << chunk_rows;
    }
  }
}

TEST_P(MediaModelTest, GreedyTokensOfTheEngineAreTheReferencesOnAnyNumberOfRanks) {
  EngineOptions engine_options;
  engine_options.limits.max_num_batched_tokens = 48;  // less than an image
  options_.limits.max_num_batched_tokens = 48;
  for (const int num_ranks : {1, 2, 4}) {
    SCOPED_TRACE(num_ranks);
    options_.num_ranks = num_ranks;
    const auto loaded = LoadEngine(description_, options_, engine_options);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    Engine& engine = *loaded->engine;
    // Twice, all at once: the second time prefixes come from the cache.
    for (int round = 0; round < 2; ++round) {
      std::vector<std::future<std::vector<int32_t>>> answers;
      for (const std::string& prompt : prompts_) {
        const PlacedMedia placed = MediaOf(prompt);
        SequenceSpec spec;
        spec.prompt = golden_.Ids(prompt + ".ids");
        spec.max_new_tokens = static_cast<int32_t>(golden_.Ids(prompt + ".greedy").size());
        spec.sampling = Greedy();
        spec.media = placed.runs;
        spec.identity.media = placed.digests;
        // One of them inside an image: nothing may be resumed there.
        spec.cache_points = {(*placed.runs)[0].position + 3,
                             static_cast<int32_t>(spec.prompt.size()) - 1};
        auto done = std::make_shared<std::promise<std::vector<int32_t>>>();
        auto tokens = std::make_shared<std::vector<int32_t>>();
        answers.push_back(done->get_future());
        const auto id = engine.Submit(std::move(spec), [done, tokens](RequestEvent event) {
          for (const SampledToken& token : event.tokens) tokens->push_back(token.id);
          if (event.finish) done->set_value(*tokens);
        });
        ASSERT_TRUE(id.ok()) << id.error().message;
      }
      for (size_t idx = 0; idx < prompts_.size(); ++idx) {
        EXPECT_EQ(answers[idx].get(), golden_.Ids(prompts_[idx] + ".greedy"))
            << prompts_[idx] << " round " << round;
      }
    }
  }
}

// Behind the same placeholders lies another image: nothing of the first may be found again.
TEST_P(MediaModelTest, ThePrefixCacheTellsImagesApart) {
  const auto loaded = LoadEngine(description_, options_, {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  Engine& engine = *loaded->engine;
  const std::string prompt = "one";
  const std::vector<int32_t> ids = golden_.Ids(prompt + ".ids");
  const auto first = Encode(kFiles[0]);
  Image other = DecodeImage(TestFile(kFiles[0])).value();
  for (uint8_t& value : other.rgb) value = static_cast<uint8_t>(255 - value);
  const NamedMedium second{"other", encoder_->EncodeImage(other, kBudget).value()};
  EXPECT_NE(first.medium.digest, second.medium.digest);
  const auto run = [&](const NamedMedium& medium) {
    const PromptMedia media = {{medium}, {}};
    const PlacedMedia placed = PlaceMedia(description_.plan, ids, media).value();
    SequenceSpec spec;
    spec.prompt = ids;
    spec.max_new_tokens = 8;
    spec.sampling = Greedy();
    spec.media = placed.runs;
    spec.identity.media = placed.digests;
    spec.cache_points = {static_cast<int32_t>(ids.size()) - 1};
    std::promise<std::pair<std::vector<int32_t>, int32_t>> done;
    std::vector<int32_t> tokens;
    int32_t num_cached = 0;
    const auto id = engine.Submit(std::move(spec), [&](RequestEvent event) {
      for (const SampledToken& token : event.tokens) tokens.push_back(token.id);
      num_cached = event.usage.cached_tokens;
      if (event.finish) done.set_value({tokens, num_cached});
    });
    CHECK(id.ok()) << id.error().message;
    return done.get_future().get();
  };
  const auto cold = run(first);
  EXPECT_EQ(cold.second, 0);
  const auto apart = run(second);
  EXPECT_LE(apart.second, 6);  // the words before the image at most
  EXPECT_NE(apart.first, cold.first);
  const auto warm = run(first);
  EXPECT_EQ(warm.second, std::ssize(ids) - 1);
  EXPECT_EQ(warm.first, cold.first);
}

INSTANTIATE_TEST_SUITE_P(Models, MediaModelTest,
                         testing::Values("media-e", "media-dense", "media-moe", "media-unified"),
                         ModelTestName);

}  // namespace
}  // namespace lapidary
