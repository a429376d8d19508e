#include "fleet/trace.h"

#include <algorithm>
#include <random>

#include "base/json_fields.h"
#include "base/read_file.h"

namespace lapidary::fleet {
namespace {

constexpr size_t kMaxTraceBytes = size_t{1} << 30;
constexpr int64_t kMaxTurns = 10'000;
constexpr IntRange kTokens = {.min = 1, .max = 1 << 20};
constexpr NumberRange kSeconds = {.min = 0.0, .max = 1e7};

Result<Conversation> ParseConversation(const Json& json, const std::string& where) {
  JsonFields fields(json, where);
  Conversation conversation;
  conversation.at_s = fields.Number("at", kSeconds);
  conversation.system = static_cast<int32_t>(fields.IntOr("system", 0, {}));
  conversation.num_system_tokens =
      static_cast<int32_t>(fields.IntOr("system_tokens", 0, {.min = 0, .max = kTokens.max}));
  RETURN_IF_ERROR(fields.status());
  const auto turns = json.find("turns");
  if (turns == json.end() || !turns->is_array() || turns->empty() ||
      std::ssize(*turns) > kMaxTurns) {
    return MakeError("{}: 'turns' must be an array of 1 to {} turns", where, kMaxTurns);
  }
  for (const Json& turn : *turns) {
    if (!turn.is_object()) return MakeError("{}: a turn must be a JSON object", where);
    JsonFields turn_fields(turn, where + ": turns");
    conversation.turns.push_back(
        {.num_tokens = static_cast<int32_t>(turn_fields.Int("tokens", kTokens)),
         .num_answer_tokens = static_cast<int32_t>(turn_fields.Int("answer", kTokens)),
         .think_s = turn_fields.NumberOr("think", 0.0, kSeconds)});
    RETURN_IF_ERROR(turn_fields.status());
  }
  return conversation;
}

std::vector<int32_t> RandomTokens(uint64_t seed, int32_t count, int32_t vocab_size) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size));
  }
  return tokens;
}

}  // namespace

int64_t Conversation::num_tokens() const {
  int64_t count = num_system_tokens;
  for (const Turn& turn : turns) count += turn.num_tokens + turn.num_answer_tokens;
  return count;
}

Result<std::vector<Conversation>> ParseTrace(std::string_view text, std::string_view name) {
  std::vector<Conversation> trace;
  size_t line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", name, line_number);
    ASSIGN_OR_RETURN(const Json json, ParseJson(line, where));
    if (!json.is_object()) return MakeError("{}: a conversation must be a JSON object", where);
    ASSIGN_OR_RETURN(Conversation conversation, ParseConversation(json, where));
    trace.push_back(std::move(conversation));
  }
  if (trace.empty()) return MakeError("{}: holds no conversations", name);
  std::stable_sort(trace.begin(), trace.end(),
                   [](const Conversation& a, const Conversation& b) { return a.at_s < b.at_s; });
  return trace;
}

Result<std::vector<Conversation>> ReadTrace(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxTraceBytes));
  return ParseTrace(text, path.string());
}

std::vector<int32_t> SystemTokens(const Conversation& conversation, int32_t vocab_size) {
  return RandomTokens(static_cast<uint64_t>(conversation.system), conversation.num_system_tokens,
                      vocab_size);
}

std::vector<int32_t> TurnTokens(size_t conversation_idx, size_t turn_idx, int32_t num_tokens,
                                int32_t vocab_size) {
  constexpr uint64_t kTurnSeeds = uint64_t{1} << 40;  // apart from those of system prompts
  return RandomTokens(kTurnSeeds + conversation_idx * kMaxTurns + turn_idx, num_tokens, vocab_size);
}

}  // namespace lapidary::fleet
