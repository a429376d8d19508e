// Encoding and loading speed. The vocabulary is synthetic: letters with every pair and a third of
// all triples, so that unbroken text is one word and ordinary text is words.
#include <benchmark/benchmark.h>

#include <random>
#include <string>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_test_util.h"

namespace lapidary {
namespace {

const Tokenizer& Letters() {
  static const Tokenizer tokenizer =
      Tokenizer::FromJson(MakeLetterFile().dump(), "letters").value();
  return tokenizer;
}

std::string RandomLetters(size_t num_bytes) {
  std::mt19937 random(1);
  std::string text(num_bytes, ' ');
  for (char& c : text) c = static_cast<char>('a' + random() % 26);
  return text;
}

// Words drawn from a list of 20,000 with a skewed frequency, as in a language.
std::string Words(size_t num_bytes) {
  std::mt19937 random(2);
  const std::string letters = RandomLetters(40000);
  std::string text;
  while (text.size() < num_bytes) {
    const double uniform = static_cast<double>(random()) / 4294967296.0;
    const auto word = static_cast<size_t>(20000 * uniform * uniform * uniform);
    text += ' ';
    text += letters.substr(word, 2 + word % 7);
    if (word % 19 == 0) text += word % 2 == 0 ? ".\n" : ",";
  }
  text.resize(num_bytes);
  return text;
}

void Encode(benchmark::State& state, const std::string& text) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(Letters().Encode(text, SpecialTokens::kParse));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

void BM_EncodeWords(benchmark::State& state) { Encode(state, Words(state.range(0))); }
void BM_EncodeUnbroken(benchmark::State& state) { Encode(state, RandomLetters(state.range(0))); }
void BM_EncodeOneLetter(benchmark::State& state) {
  Encode(state, std::string(state.range(0), 'a'));
}

void BM_Decode(benchmark::State& state) {
  const std::string text = Words(1 << 20);
  const std::vector<int32_t> ids = Letters().Encode(text, SpecialTokens::kPlain);
  for (auto _ : state) benchmark::DoNotOptimize(Letters().Decode(ids, false));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

void BM_Load(benchmark::State& state) {
  const std::string file = MakeLetterFile().dump();
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::FromJson(file, "letters"));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * file.size()));
}

BENCHMARK(BM_EncodeWords)->Arg(128)->Arg(4096)->Arg(1 << 20)->Arg(8 << 20);
BENCHMARK(BM_EncodeUnbroken)->Arg(4096)->Arg(1 << 20)->Arg(8 << 20)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeOneLetter)->Arg(1 << 20)->Arg(8 << 20)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Decode);
BENCHMARK(BM_Load)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lapidary
