#include "server/prompt_echo.h"

#include "front/answer_stream.h"

namespace lapidary {

PromptEcho MakePromptEcho(const Tokenizer& tokenizer, const RawPrompt& raw,
                          const std::vector<int32_t>& ids) {
  PromptEcho echo;
  AnswerStream stream(tokenizer, {.skip_special = false});
  std::vector<OutputEvent> events;
  const std::string* sent = std::get_if<std::string>(&raw);
  size_t first = 0;
  if (sent != nullptr && ids.front() == tokenizer.bos_id()) {
    // Was it sent, or put in front?
    const std::string bos(tokenizer.IdToPiece(tokenizer.bos_id()).value_or(""));
    if (!sent->starts_with(bos)) {
      echo.offsets.push_back(0);
      first = 1;
    }
  }
  for (size_t idx = first; idx < ids.size(); ++idx) {
    echo.offsets.push_back(stream.num_characters());
    stream.Push(ids[idx], &events);
  }
  stream.Finish(&events);
  echo.num_characters = stream.num_characters();
  if (sent != nullptr) {
    echo.text = *sent;
  } else {
    for (const OutputEvent& event : events) echo.text += event.text;
  }
  return echo;
}

}  // namespace lapidary
