#include "server/transcription_format.h"

#include <algorithm>
#include <cmath>

namespace lapidary {
namespace {

OrderedJson UsageJson(const Usage& usage) {
  return {{"type", "tokens"},
          {"input_tokens", usage.prompt_tokens},
          {"output_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

OrderedJson VerboseJson(const std::string& text, const TranscriptionFormat::Options& options) {
  OrderedJson segments = OrderedJson::array();
  if (!text.empty()) {
    segments.push_back(
        {{"id", 0}, {"seek", 0}, {"start", 0.0}, {"end", options.seconds}, {"text", text}});
  }
  return {{"task", "transcribe"},
          {"language", options.language.empty() ? "unknown" : options.language},
          {"duration", options.seconds},
          {"text", text},
          {"segments", std::move(segments)},
          {"usage", {{"type", "duration"}, {"seconds", std::ceil(options.seconds)}}}};
}

// "00:00:30,250"; WebVTT has a point there.
std::string CueTime(double seconds, char point) {
  const auto ms = static_cast<int64_t>(std::llround(seconds * 1e3));
  return fmt::format("{:02}:{:02}:{:02}{}{:03}", ms / 3'600'000, ms / 60'000 % 60, ms / 1000 % 60,
                     point, ms % 1000);
}

void ReplaceAll(std::string_view from, std::string_view to, std::string* text) {
  for (size_t at = 0; (at = text->find(from, at)) != std::string::npos; at += to.size()) {
    text->replace(at, from.size(), to);
  }
}

// A cue's text is a line, and in WebVTT it has markup.
std::string CueText(std::string text, bool has_markup) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::replace(text.begin(), text.end(), '\r', ' ');
  if (has_markup) {
    ReplaceAll("&", "&amp;", &text);
    ReplaceAll("<", "&lt;", &text);
    ReplaceAll(">", "&gt;", &text);
  }
  return text;
}

std::string Subtitles(const std::string& text, double seconds, bool is_vtt) {
  const char point = is_vtt ? '.' : ',';
  std::string subtitles = is_vtt ? "WEBVTT\n\n" : "";
  if (text.empty()) return subtitles;
  if (!is_vtt) subtitles += "1\n";
  return subtitles + fmt::format("{} --> {}\n{}\n\n", CueTime(0.0, point), CueTime(seconds, point),
                                 CueText(text, is_vtt));
}

}  // namespace

void TranscriptionFormat::Whole(std::vector<FinishedChoice> choices, const Usage& usage,
                                AnswerText* text) {
  const std::string& content = choices[0].output.content;
  switch (options_.kind) {
    case TranscriptionKind::kJson:
      return text->Append(DumpJson({{"text", content}, {"usage", UsageJson(usage)}}));
    case TranscriptionKind::kText:
      return text->Append(content + "\n");
    case TranscriptionKind::kVerboseJson:
      return text->Append(DumpJson(VerboseJson(content, options_)));
    case TranscriptionKind::kSrt:
      return text->Append(Subtitles(content, options_.seconds, /*is_vtt=*/false));
    case TranscriptionKind::kVtt:
      return text->Append(Subtitles(content, options_.seconds, /*is_vtt=*/true));
  }
}

const char* TranscriptionFormat::content_type() const {
  switch (options_.kind) {
    case TranscriptionKind::kJson:
    case TranscriptionKind::kVerboseJson:
      break;
    case TranscriptionKind::kVtt:
      return "text/vtt; charset=utf-8";
    case TranscriptionKind::kText:
    case TranscriptionKind::kSrt:
      return "text/plain; charset=utf-8";
  }
  return "application/json";
}

void TranscriptionFormat::Begin(const Usage&, ServerEvents*) {}

void TranscriptionFormat::Delta(int, const ChoiceDelta& delta, const FinishInfo*, bool,
                                const Usage&, ServerEvents* events) {
  if (delta.content.empty()) return;
  text_ += delta.content;
  events->push_back({"", DumpJson({{"type", "transcript.text.delta"}, {"delta", delta.content}})});
}

void TranscriptionFormat::End(const Usage& usage, ServerEvents* events) {
  events->push_back(
      {"",
       DumpJson({{"type", "transcript.text.done"}, {"text", text_}, {"usage", UsageJson(usage)}})});
}

void TranscriptionFormat::Fail(const ApiError& error, ServerEvents* events) {
  events->push_back({"", DumpJson(error.ToJson())});
}

}  // namespace lapidary
