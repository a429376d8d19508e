#include "request/prepare_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "session/answer_rules.h"

namespace lapidary {
namespace {

using grammar::Constraint;
using FieldStatus = std::optional<FieldError>;

std::string Spell(std::string_view field, FieldStyle style) {
  if (style == FieldStyle::kQuoted) return fmt::format("'{}'", field);
  std::string flag = "--" + std::string(field);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

}  // namespace

std::optional<FieldError> CheckAnswerRequest(const RequestContext& context,
                                             const AnswerRequest& asked) {
  if (const Status valid = asked.sampling.Validate(context.vocab_size); !valid.ok()) {
    // The message begins with the field's name.
    const std::string& message = valid.error().message;
    return FieldError{message.substr(0, message.find_first_of(" :")), message};
  }
  const std::string min_tokens = Spell("min_tokens", context.style);
  if (asked.min_tokens < 0) {
    return FieldError{"min_tokens", min_tokens + " must be at least 0"};
  }
  if (asked.max_tokens && asked.min_tokens > *asked.max_tokens) {
    return FieldError{"min_tokens",
                      fmt::format("{} is {}, more than the {} of {}", min_tokens, asked.min_tokens,
                                  *asked.max_tokens, Spell("max_tokens", context.style))};
  }
  return {};
}

namespace {

// The form that constraint and tools ask for. A call that is demanded takes precedence over a
// constraint.
std::optional<Constraint> JoinForms(const AnswerRequest& asked, const ChatRules* chat,
                                    std::string* field) {
  std::optional<Constraint> form = asked.constraint;
  if (form) *field = asked.constraint_field;
  if (chat == nullptr || chat->calls.tools.empty()) return form;
  const ToolCallRules& calls = chat->calls;
  if (form && !calls.must_call) {
    if (!asked.constraint_takes_calls) return form;
    form->tools = calls.tools;
    form->many_calls = calls.many_calls;
  } else if (calls.must_call || calls.has_form) {
    form = Constraint{.kind = Constraint::Kind::kToolCalls,
                      .tools = calls.tools,
                      .must_call = calls.must_call,
                      .many_calls = calls.many_calls};
    *field = "tools";
  }
  return form;
}

FieldStatus MakeForm(const RequestContext& context, const AnswerRequest& asked,
                     const ChatRules* chat, const PreparedPrompt& prompt,
                     PreparedRequest* prepared) {
  std::optional<Constraint>& form = prepared->form;
  form = JoinForms(asked, chat, &prepared->form_field);
  const bool has_form = form.has_value();
  if (asked.thinking_token_budget >= 0) {
    constexpr const char* kField = "thinking_token_budget";
    if (chat == nullptr) {
      return FieldError{kField, Spell(kField, context.style) +
                                    " needs a conversation: a text to be continued has no "
                                    "thoughts"};
    }
    if (!form) {
      form = Constraint{.kind = Constraint::Kind::kAnything};
      prepared->form_field = kField;
    }
    form->max_thought_tokens = asked.thinking_token_budget;
  }
  const AnswerRules rules = {.min_tokens = asked.min_tokens,
                             .bad_words = asked.bad_words,
                             .stop_ids = asked.stop_token_ids,
                             .ignore_eos = asked.ignore_eos};
  if (const Status added = AddRules(rules, context.text, &form); !added.ok()) {
    return FieldError{"bad_words", added.error().message};
  }
  if (!form) return {};
  if (asked.ignore_eos && has_form) {
    return FieldError{"ignore_eos", Spell("ignore_eos", context.style) +
                                        " and a form of the answer exclude each other"};
  }
  if (chat != nullptr) {
    form->thought = ThoughtBeforeForm(prompt.text.starts_in_thought, chat->thinks);
  }
  return {};
}

FieldStatus MakeReader(const RequestContext& context, const AnswerRequest& asked,
                       const ChatRules* chat, const PreparedPrompt& prompt,
                       AnswerReaderOptions* reader) {
  if (const auto stop = StopStrings::Create(asked.stop); !stop.ok()) {
    return FieldError{"stop", stop.error().message};
  }
  if (!asked.stop.empty() && !context.text.tokenizer.ok()) {
    return FieldError{"stop", Spell("stop", context.style) +
                                  " needs text: " + context.text.tokenizer.error().message};
  }
  reader->skip_special = asked.skip_special;
  reader->stop = asked.stop;
  reader->include_stop_text = asked.include_stop_text;
  reader->min_tokens = asked.min_tokens;
  reader->stop_token_ids = asked.stop_token_ids;
  if (chat == nullptr) return {};
  reader->single_call = chat->single_call;
  reader->parser.emplace();
  reader->parser->starts_in_thought = prompt.text.starts_in_thought;
  reader->parser->accept_bare_thought = !chat->thinks;
  if (chat->tools) reader->parser->tools = *chat->tools;
  return {};
}

// Tokens that may follow the prompt.
FieldStatus CheckLength(const RequestContext& context, const AnswerRequest& asked,
                        const PreparedPrompt& prompt, int32_t* max_new_tokens) {
  const int64_t prompt_len = std::ssize(prompt.text.ids);
  const int64_t room = context.max_model_len - prompt_len;
  int64_t wanted = asked.max_tokens ? *asked.max_tokens : std::max<int64_t>(room, 1);
  if (asked.clamps_max_tokens) wanted = std::min(wanted, std::max<int64_t>(room, 1));
  *max_new_tokens = static_cast<int32_t>(wanted);
  if (wanted <= room) return {};
  return FieldError{
      "",
      fmt::format("the context holds {} tokens; the prompt has {} and {} more were asked for",
                  context.max_model_len, prompt_len, wanted),
      /*exceeds_context=*/true};
}

}  // namespace

std::optional<FieldError> PrepareRequest(const RequestContext& context, const AnswerRequest& asked,
                                         const ChatRules* chat, std::vector<PreparedPrompt> prompts,
                                         PreparedRequest* prepared) {
  CHECK(!prompts.empty() && (chat == nullptr || prompts.size() == 1));
  if (FieldStatus bad = CheckAnswerRequest(context, asked)) return bad;
  std::vector<int32_t> max_new_tokens(prompts.size());
  for (size_t idx = 0; idx < prompts.size(); ++idx) {
    if (FieldStatus bad = CheckLength(context, asked, prompts[idx], &max_new_tokens[idx])) {
      return bad;
    }
  }
  if (FieldStatus bad = MakeForm(context, asked, chat, prompts[0], prepared)) return bad;
  if (FieldStatus bad = MakeReader(context, asked, chat, prompts[0], &prepared->reader)) return bad;
  const auto sampling = std::make_shared<const SamplingParams>(asked.sampling);
  for (size_t idx = 0; idx < prompts.size(); ++idx) {
    Request& request = prepared->requests.emplace_back();
    request.prompt = std::move(prompts[idx].text);
    request.media = std::move(prompts[idx].media.runs);
    request.media_digests = std::move(prompts[idx].media.digests);
    request.generated = asked.generated;
    request.max_new_tokens = max_new_tokens[idx];
    request.sampling = sampling;
    request.stop_ids = asked.stop_token_ids;
    request.ignore_eos = asked.ignore_eos;
    request.num_prompt_logprobs = asked.num_prompt_logprobs;
    request.cache_salt = asked.cache_salt;
    request.priority = asked.priority;
  }
  return {};
}

}  // namespace lapidary
