// Runs MaskBench's data (tools/maskbench/README.md): judges every instance of every schema token by
// token, and times compiling, masks and steps on one core.
//
//   mask_bench [--judge] VOCABULARY DATA_DIRECTORY [FILTER]
//
// With --judge only tokens are accepted or not and no masks are made: much quicker.
// VOCABULARY has a line for each token, its bytes in hexadecimal; an empty line is a special token.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/read_file.h"
#include "grammar/code_points.h"
#include "grammar/json_value.h"
#include "grammar/matcher.h"
#include "grammar/schema_grammar.h"

namespace lapidary::grammar {
namespace {

// Of this thread: other programs on the machine do not count.
double CpuMicros() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}
double MicrosSince(double start) { return CpuMicros() - start; }

// As Python's json.dumps(value, ensure_ascii=False) writes it.
void Dump(const JsonValue& value, std::string* text) {
  switch (value.type) {
    case JsonValue::Type::kNull:
      *text += "null";
      return;
    case JsonValue::Type::kBool:
      *text += value.boolean ? "true" : "false";
      return;
    case JsonValue::Type::kNumber:
      *text += value.text;
      return;
    case JsonValue::Type::kString:
      *text += '"' + EscapeJson(value.text) + '"';
      return;
    case JsonValue::Type::kArray:
      *text += '[';
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) *text += ", ";
        Dump(value.items[i], text);
      }
      *text += ']';
      return;
    case JsonValue::Type::kObject:
      *text += '{';
      for (size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) *text += ", ";
        *text += '"' + EscapeJson(value.members[i].first) + "\": ";
        Dump(value.members[i].second, text);
      }
      *text += '}';
      return;
  }
}

std::shared_ptr<const TokenVocabulary> ReadVocabulary(const std::string& path) {
  const Result<std::string> file = ReadFile(path, size_t{1} << 28);
  CHECK(file.ok()) << file.error().message;
  std::vector<std::string> tokens;
  for (size_t at = 0; at < file->size();) {
    const size_t end = std::min(file->find('\n', at), file->size());
    std::string bytes;
    for (size_t i = at; i + 1 < end; i += 2) {
      bytes += static_cast<char>(std::stoi(file->substr(i, 2), nullptr, 16));
    }
    tokens.push_back(std::move(bytes));
    at = end + 1;
  }
  return std::make_shared<TokenVocabulary>(std::move(tokens));
}

// Cuts a text into the longest tokens that fit, from the left.
class Cutter {
 public:
  explicit Cutter(const TokenVocabulary& vocabulary) {
    for (int32_t token = 0; token < vocabulary.num_tokens(); ++token) {
      const std::string_view bytes = vocabulary.BytesOf(token);
      if (bytes.empty()) continue;
      by_text_.emplace(bytes, token);
      longest_ = std::max(longest_, bytes.size());
    }
  }
  std::vector<int32_t> Cut(std::string_view text) const {
    std::vector<int32_t> tokens;
    while (!text.empty()) {
      size_t length = std::min(longest_, text.size());
      while (!by_text_.contains(text.substr(0, length))) --length;
      tokens.push_back(by_text_.at(text.substr(0, length)));
      text.remove_prefix(length);
    }
    return tokens;
  }

 private:
  std::unordered_map<std::string_view, int32_t> by_text_;
  size_t longest_ = 0;
};

std::string Quantiles(std::vector<double> values) {
  if (values.empty()) return "none";
  std::ranges::sort(values);
  double sum = 0;
  for (double value : values) sum += value;
  const auto at = [&](double share) {
    return values[std::min(values.size() - 1, static_cast<size_t>(share * values.size()))];
  };
  return fmt::format(
      "mean {:.1f}  p50 {:.1f}  p75 {:.1f}  p90 {:.1f}  p95 {:.1f}  p99 {:.1f}  p99.9 {:.1f}  max "
      "{:.1f}",
      sum / values.size(), at(0.5), at(0.75), at(0.9), at(0.95), at(0.99), at(0.999),
      values.back());
}

int Run(const std::string& vocabulary_path, const std::string& directory, const std::string& filter,
        bool makes_masks) {
  const std::shared_ptr<const TokenVocabulary> vocabulary = ReadVocabulary(vocabulary_path);
  const Cutter cutter(*vocabulary);
  std::vector<uint32_t> words(vocabulary->num_words());
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename().string().find(filter) != std::string::npos) {
      files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  int num_right = 0;
  int num_refused = 0;
  int num_too_narrow = 0;
  int num_too_wide = 0;
  int num_limits = 0;
  std::vector<double> first_masks;
  std::vector<double> masks;
  std::vector<double> steps;
  std::map<std::string, int> refusals;
  for (const std::filesystem::path& path : files) {
    const Result<std::string> text = ReadFile(path, size_t{1} << 28);
    CHECK(text.ok()) << text.error().message;
    const Result<JsonValue> test = ParseJson(*text, path.string());
    CHECK(test.ok()) << test.error().message;
    std::string schema_text;
    Dump(*test->Find("schema"), &schema_text);
    const std::string name = path.filename().string();

    const double start = CpuMicros();
    const auto compile = [&]() -> Result<std::shared_ptr<const CompiledGrammar>> {
      ASSIGN_OR_RETURN(const JsonValue schema, ParseJson(schema_text, "the schema"));
      GrammarBuilder builder;
      ASSIGN_OR_RETURN(const NodeId root, AddSchema(&builder, schema, {}));
      ASSIGN_OR_RETURN(Grammar grammar, std::move(builder).Finish(root));
      return std::make_shared<const CompiledGrammar>(std::move(grammar), vocabulary,
                                                     std::vector<int32_t>{0});
    };
    Result<std::shared_ptr<const CompiledGrammar>> grammar = compile();
    Status first_mask;
    if (grammar.ok()) first_mask = Matcher(*grammar).FillMask(words);
    const double first_us = MicrosSince(start);
    if (!grammar.ok() || !first_mask.ok()) {
      ++num_refused;
      const std::string message =
          grammar.ok() ? first_mask.error().message : grammar.error().message;
      ++refusals[message.substr(0, message.find('"'))];
      fmt::print("REFUSED {} {:.0f} us: {}\n", name, first_us, message);
      continue;
    }
    first_masks.push_back(first_us);
    if (first_us > 50'000) fmt::print("SLOW {} {:.0f} us\n", name, first_us);
    bool is_right = true;
    for (const JsonValue& instance : test->Find("tests")->items) {
      std::string instance_text;
      Dump(*instance.Find("data"), &instance_text);
      const bool is_valid = instance.Find("valid")->boolean;
      Matcher matcher(*grammar);
      bool accepted = true;
      size_t num_bytes = 0;
      for (int32_t token : cutter.Cut(instance_text)) {
        const double mask_start = CpuMicros();
        const Status filled = makes_masks ? matcher.FillMask(words) : Status();
        const double mask_us = MicrosSince(mask_start);
        const double step_start = CpuMicros();
        const Result<bool> stepped = matcher.Accept(token);
        steps.push_back(MicrosSince(step_start));
        masks.push_back(mask_us);
        if (mask_us > 20'000) fmt::print("SLOWMASK {} {:.0f} us at {}\n", name, mask_us, num_bytes);
        if (!filled.ok() || !stepped.ok()) {
          fmt::print("LIMIT {}: {}\n", name,
                     filled.ok() ? stepped.error().message : filled.error().message);
          ++num_limits;
          accepted = false;
          break;
        }
        const bool is_allowed = *stepped;
        if (makes_masks) {
          CHECK_EQ(is_allowed, (words[token / 32] >> (token % 32) & 1) != 0) << name;
        }
        if (!is_allowed) {
          accepted = false;
          break;
        }
        num_bytes += vocabulary->BytesOf(token).size();
      }
      if (accepted && !matcher.CanStop()) accepted = false;
      if (accepted == is_valid) continue;
      is_right = false;
      ++(accepted ? num_too_wide : num_too_narrow);
      fmt::print("{} {}: {}\n", accepted ? "WIDE" : "NARROW", name,
                 accepted ? instance_text.substr(0, 600)
                          : instance_text.substr(0, num_bytes) + " <<HERE>> " +
                                instance_text.substr(num_bytes, 80));
    }
    num_right += is_right ? 1 : 0;
  }
  std::vector<std::pair<int, std::string>> by_count;
  for (const auto& [message, count] : refusals) by_count.emplace_back(count, message);
  std::ranges::sort(by_count, std::greater());
  for (size_t i = 0; i < std::min<size_t>(by_count.size(), 40); ++i) {
    fmt::print("  {:5} {}\n", by_count[i].first, by_count[i].second);
  }
  fmt::print("schemas {}: right {}, refused {}; instances too narrow {}, too wide {}, limits {}\n",
             files.size(), num_right, num_refused, num_too_narrow, num_too_wide, num_limits);
  fmt::print("first mask us: {}\n", Quantiles(first_masks));
  fmt::print("mask us:       {}   ({} masks)\n", Quantiles(masks), masks.size());
  fmt::print("step us:       {}\n", Quantiles(steps));
  return 0;
}

}  // namespace
}  // namespace lapidary::grammar

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  const bool judges_only = !args.empty() && args[0] == "--judge";
  if (judges_only) args.erase(args.begin());
  if (args.size() < 2) {
    fmt::print(stderr, "usage: mask_bench [--judge] VOCABULARY DATA_DIRECTORY [FILTER]\n");
    return 2;
  }
  return lapidary::grammar::Run(args[0], args[1], args.size() > 2 ? args[2] : "", !judges_only);
}
