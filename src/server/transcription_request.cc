#include "server/transcription_request.h"

#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <map>
#include <utility>

#include "base/base64.h"
#include "base/check.h"
#include "base/excerpt.h"
#include "server/form_data.h"

namespace lapidary {
namespace {

constexpr std::array<std::pair<std::string_view, TranscriptionKind>, 5> kKinds = {
    {{"json", TranscriptionKind::kJson},
     {"text", TranscriptionKind::kText},
     {"verbose_json", TranscriptionKind::kVerboseJson},
     {"srt", TranscriptionKind::kSrt},
     {"vtt", TranscriptionKind::kVtt}}};

// Null for a name that is none.
const TranscriptionKind* FindKind(std::string_view name) {
  for (const auto& [known, kind] : kKinds) {
    if (known == name) return &kind;
  }
  return nullptr;
}

ApiStatus CheckFormat(std::string_view format, bool is_streamed) {
  if (FindKind(format) == nullptr) {
    std::vector<std::string_view> names;
    for (const auto& [name, kind] : kKinds) names.push_back(name);
    return BadRequest("response_format", "'response_format' must be one of {}, got '{}'",
                      fmt::join(names, ", "), Excerpt(format));
  }
  if (is_streamed && format != "json") {
    return BadRequest("response_format",
                      "'stream' sends events of JSON: 'response_format' must be json with it");
  }
  return {};
}

ApiStatus CheckGranularity(std::string_view granularity) {
  if (granularity == "segment") return {};
  return BadRequest("timestamp_granularities",
                    "the model does not tell when each word is said: 'timestamp_granularities' may "
                    "be segment, which is the whole of what was heard");
}

std::string Instruction(std::string_view language, std::string_view prompt) {
  std::string text = language.empty()
                         ? std::string("Transcribe this speech in its original language.")
                         : fmt::format("Transcribe this speech, whose language is '{}'.", language);
  text += " Answer with the transcription alone, without line breaks.";
  if (!prompt.empty()) text += fmt::format(" It follows upon this text: {}", prompt);
  return text;
}

// Fields of a form are bytes; what goes into a prompt must be UTF-8, as JSON would have it.
ApiStatus CheckText(const std::string& name, std::string_view value) {
  try {
    (void)OrderedJson(value).dump();
  } catch (const OrderedJson::exception&) {
    return BadRequest(name, "'{}' is not UTF-8", name);
  }
  return {};
}

ApiStatus ReadTemperature(std::string_view text, double* temperature) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *temperature);
  if (error == std::errc() && end == text.data() + text.size()) return {};
  return BadRequest("temperature", "'temperature' must be a number");
}

}  // namespace

ApiStatus TranscriptionToChat(std::string_view form, OrderedJson* body) {
  std::vector<FormField> fields;
  RETURN_IF_API_ERROR(ParseFormData(form, &fields));
  std::map<std::string, std::string_view> values;
  for (const FormField& field : fields) {
    values[field.name] = field.value;
    if (field.name.starts_with("timestamp_granularities")) {
      RETURN_IF_API_ERROR(CheckGranularity(field.value));
    }
  }
  if (!values.contains("file")) return BadRequest("file", "the form has no field 'file'");
  for (const char* name : {"model", "language", "prompt"}) {
    RETURN_IF_API_ERROR(CheckText(name, values[name]));
  }
  const std::string_view stream = values["stream"];
  if (!stream.empty() && stream != "true" && stream != "false") {
    return BadRequest("stream", "'stream' must be true or false");
  }
  std::string_view format = values["response_format"];
  if (format.empty()) format = "json";
  RETURN_IF_API_ERROR(CheckFormat(format, stream == "true"));
  double temperature = 0.0;
  if (!values["temperature"].empty()) {
    RETURN_IF_API_ERROR(ReadTemperature(values["temperature"], &temperature));
  }
  const OrderedJson audio = {{"type", "input_audio"},
                             {"input_audio", {{"data", EncodeBase64(values["file"])}}}};
  const OrderedJson text = {{"type", "text"},
                            {"text", Instruction(values["language"], values["prompt"])}};
  OrderedJson message = {{"role", "user"}, {"content", OrderedJson::array({audio, text})}};
  OrderedJson chat = {{"messages", OrderedJson::array({std::move(message)})},
                      {"temperature", temperature},
                      {"stream", stream == "true"}};
  if (!values["model"].empty()) chat["model"] = values["model"];
  *body = {
      {"chat", std::move(chat)}, {"language", values["language"]}, {"response_format", format}};
  return {};
}

TranscriptionKind TranscriptionKindOf(const OrderedJson& body) {
  const TranscriptionKind* kind = FindKind(body["response_format"].get_ref<const std::string&>());
  CHECK(kind != nullptr);
  return *kind;
}

}  // namespace lapidary
