#include "server/transcription_request.h"

#include <charconv>
#include <map>

#include "base/base64.h"
#include "server/form_data.h"

namespace lapidary {
namespace {

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

ApiStatus TranscriptionToChat(std::string_view form, OrderedJson* chat) {
  std::vector<FormField> fields;
  RETURN_IF_API_ERROR(ParseFormData(form, &fields));
  std::map<std::string, std::string_view> values;
  for (const FormField& field : fields) values[field.name] = field.value;
  if (!values.contains("file")) return BadRequest("file", "the form has no field 'file'");
  for (const char* name : {"model", "language", "prompt"}) {
    RETURN_IF_API_ERROR(CheckText(name, values[name]));
  }
  const std::string_view format = values["response_format"];
  if (!format.empty() && format != "json") {
    return BadRequest("response_format", "'response_format' must be \"json\"");
  }
  const std::string_view stream = values["stream"];
  if (!stream.empty() && stream != "true" && stream != "false") {
    return BadRequest("stream", "'stream' must be true or false");
  }
  double temperature = 0.0;
  if (!values["temperature"].empty()) {
    RETURN_IF_API_ERROR(ReadTemperature(values["temperature"], &temperature));
  }
  const OrderedJson audio = {{"type", "input_audio"},
                             {"input_audio", {{"data", EncodeBase64(values["file"])}}}};
  const OrderedJson text = {{"type", "text"},
                            {"text", Instruction(values["language"], values["prompt"])}};
  OrderedJson message = {{"role", "user"}, {"content", OrderedJson::array({audio, text})}};
  *chat = {{"messages", OrderedJson::array({std::move(message)})},
           {"temperature", temperature},
           {"stream", stream == "true"}};
  if (!values["model"].empty()) (*chat)["model"] = values["model"];
  return {};
}

}  // namespace lapidary
