// lapidary._core: the library's interface for the Python package, which is the only one to use it.
// Objects that users see are made in Python, out of the tuples that are made here.
#include <lapidary/server.h>
#include <lapidary/session.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using lapidary::Answer;
using lapidary::Constraint;
using lapidary::Output;
using lapidary::Prompt;
using lapidary::Request;
using lapidary::Session;
using lapidary::SessionOptions;
using lapidary::Stream;
using lapidary::Token;
using lapidary::Update;

nb::list IdsOf(const std::vector<Token>& tokens) {
  nb::list ids;
  for (const Token& token : tokens) ids.append(token.id);
  return ids;
}

// [(id, logprob, [(id, logprob), ...]), ...]
nb::list LogprobsOf(const std::vector<Token>& tokens) {
  nb::list logprobs;
  for (const Token& token : tokens) {
    nb::list top;
    for (const lapidary::Logprob& other : token.top)
      top.append(nb::make_tuple(other.id, other.logprob));
    logprobs.append(nb::make_tuple(token.id, token.logprob, top));
  }
  return logprobs;
}

// (text, reasoning, [(name, arguments)], ids, logprobs, finish, stop_reason, cached)
nb::tuple AnswerTuple(const Answer& answer, bool has_logprobs) {
  nb::list calls;
  for (const lapidary::ToolCall& call : answer.tool_calls) {
    calls.append(nb::make_tuple(call.name, call.arguments));
  }
  nb::object logprobs = nb::none();
  if (has_logprobs) logprobs = LogprobsOf(answer.tokens);
  nb::object finish = nb::none();
  if (answer.finish) finish = nb::str(lapidary::FinishName(*answer.finish));
  nb::object stop_reason = nb::none();
  if (!answer.stop_string.empty()) stop_reason = nb::cast(answer.stop_string);
  if (answer.stop_token_id >= 0) stop_reason = nb::int_(answer.stop_token_id);
  return nb::make_tuple(answer.text, answer.reasoning, calls, IdsOf(answer.tokens), logprobs,
                        finish, stop_reason, answer.usage.cached_prompt_tokens);
}

// A prompt with the rest of its request, which many prompts may share.
Request MakeRequest(const Prompt& prompt, const Request& rest, std::optional<uint64_t> seed) {
  Request request = rest;
  request.prompt = prompt;
  if (!request.sampling.seed) request.sampling.seed = seed;
  return request;
}

// [(answers, prompt_logprobs), ...]. `on_progress(num_done)` is called as requests end. Ctrl-C and
// whatever it raises end the batch.
nb::list Generate(Session& session, const nb::list& jobs, const nb::object& on_progress) {
  std::vector<Request> requests;
  requests.reserve(nb::len(jobs));
  for (const nb::handle job : jobs) {
    requests.push_back(MakeRequest(nb::cast<const Prompt&>(job[0]),
                                   nb::cast<const Request&>(job[1]),
                                   nb::cast<std::optional<uint64_t>>(job[2])));
  }
  std::optional<nb::python_error> raised;
  const auto go_on = [&](size_t num_done) {
    const nb::gil_scoped_acquire gil;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!on_progress.is_none()) on_progress(num_done);
    } catch (nb::python_error& error) {
      raised.emplace(std::move(error));
    }
    return !raised;
  };
  std::vector<Output> outputs;
  {
    const nb::gil_scoped_release no_gil;
    outputs = session.Generate(requests, go_on);
  }
  if (raised) {
    raised->restore();
    throw nb::python_error();
  }
  nb::list results;
  for (size_t request_idx = 0; request_idx < outputs.size(); ++request_idx) {
    const Output& output = outputs[request_idx];
    const Request& request = requests[request_idx];
    nb::list answers;
    for (const Answer& answer : output.answers) {
      answers.append(AnswerTuple(answer, request.num_logprobs >= 0));
    }
    nb::object prompt_logprobs = nb::none();
    if (request.num_prompt_logprobs >= 0) prompt_logprobs = LogprobsOf(output.prompt_logprobs);
    results.append(nb::make_tuple(answers, prompt_logprobs));
  }
  return results;
}

// (model, draft_model): the paths of their files. Ctrl-C ends what is being fetched.
nb::tuple FindModel(const std::string& model, const SessionOptions& options) {
  std::optional<nb::python_error> raised;
  const auto go_on = [&] {
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) raised.emplace();
    return !raised;
  };
  lapidary::FoundModel found;
  try {
    const nb::gil_scoped_release no_gil;
    found = lapidary::FindModel(model, options, go_on);
  } catch (const lapidary::Error&) {
    if (!raised) throw;
    raised->restore();
    throw nb::python_error();
  }
  return nb::make_tuple(found.model, found.draft_model);
}

using LogitsArray = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

LogitsArray Logits(Session& session, const std::vector<int32_t>& ids) {
  auto* logits = new std::vector<float>();
  nb::capsule owner(logits,
                    [](void* data) noexcept { delete static_cast<std::vector<float>*>(data); });
  {
    const nb::gil_scoped_release no_gil;
    *logits = session.Logits(ids);
  }
  return LogitsArray(logits->data(), {ids.size(), static_cast<size_t>(session.vocab_size())},
                     owner);
}

// [(request, answer_index, answer, prompt_logprobs, is_last, error, is_device_error), ...]
nb::list TakeUpdates(Stream& stream) {
  std::vector<Update> updates;
  {
    const nb::gil_scoped_release no_gil;
    updates = stream.Take(std::chrono::milliseconds(0));
  }
  nb::list list;
  for (const Update& update : updates) {
    nb::object error = nb::none();
    if (update.news.finish == lapidary::Finish::kError) error = nb::cast(update.news.error);
    list.append(nb::make_tuple(
        update.request, update.answer_index, AnswerTuple(update.news, /*has_logprobs=*/true),
        LogprobsOf(update.prompt_logprobs), update.is_last, error, update.news.is_device_error));
  }
  return list;
}

void BindRequest(nb::module_& module) {
  nb::class_<Prompt>(module, "Prompt")
      .def(
          "__init__",
          [](Prompt* self, std::vector<int32_t> ids) { new (self) Prompt{.ids = std::move(ids)}; },
          "ids"_a)
      .def_prop_ro("ids", [](const Prompt& prompt) { return prompt.ids; })
      .def_rw("cache_salt", &Prompt::cache_salt);

  using Kind = Constraint::Kind;
  nb::enum_<Kind>(module, "ConstraintKind")
      .value("JSON_OBJECT", Kind::kJsonObject)
      .value("JSON_SCHEMA", Kind::kJsonSchema)
      .value("REGEX", Kind::kRegex)
      .value("CHOICE", Kind::kChoice)
      .value("GRAMMAR", Kind::kGrammar)
      .value("STRUCTURAL_TAG", Kind::kStructuralTag);
  nb::class_<Constraint>(module, "Constraint")
      .def(
          "__init__",
          [](Constraint* self, Kind kind, std::string text, std::vector<std::string> choices) {
            new (self) Constraint{kind, std::move(text), std::move(choices)};
          },
          "kind"_a, "text"_a, "choices"_a);

  nb::class_<Request> request(module, "Request");
  request.def(nb::init<>());
  const auto sampling = [&](const char* name, auto lapidary::Sampling::*field) {
    using Value = std::remove_reference_t<decltype(std::declval<lapidary::Sampling>().*field)>;
    request.def_prop_rw(
        name, [field](const Request& self) { return self.sampling.*field; },
        [field](Request& self, Value value) { self.sampling.*field = std::move(value); },
        nb::for_setter(nb::arg("value").none()));
  };
  sampling("temperature", &lapidary::Sampling::temperature);
  sampling("top_k", &lapidary::Sampling::top_k);
  sampling("top_p", &lapidary::Sampling::top_p);
  sampling("min_p", &lapidary::Sampling::min_p);
  sampling("repetition_penalty", &lapidary::Sampling::repetition_penalty);
  sampling("presence_penalty", &lapidary::Sampling::presence_penalty);
  sampling("frequency_penalty", &lapidary::Sampling::frequency_penalty);
  sampling("logit_bias", &lapidary::Sampling::logit_bias);
  sampling("allowed_token_ids", &lapidary::Sampling::allowed_token_ids);
  sampling("seed", &lapidary::Sampling::seed);
  request.def_rw("num_answers", &Request::num_answers)
      .def_rw("max_tokens", &Request::max_tokens, nb::arg("value").none())
      .def_rw("min_tokens", &Request::min_tokens)
      .def_rw("bad_words", &Request::bad_words)
      .def_rw("priority", &Request::priority)
      .def_rw("stop", &Request::stop)
      .def_rw("stop_token_ids", &Request::stop_token_ids)
      .def_rw("include_stop", &Request::include_stop)
      .def_rw("ignore_eos", &Request::ignore_eos)
      .def_rw("skip_special_tokens", &Request::skip_special_tokens)
      .def_rw("num_logprobs", &Request::num_logprobs)
      .def_rw("num_prompt_logprobs", &Request::num_prompt_logprobs)
      .def_rw("constraint", &Request::constraint, nb::arg("value").none())
      .def_rw("thinking_token_budget", &Request::thinking_token_budget, nb::arg("value").none());
}

void BindSession(nb::module_& module) {
  nb::class_<SessionOptions>(module, "SessionOptions")
      .def(nb::init<>())
      .def_rw("device", &SessionOptions::device)
      .def_rw("tokenizer", &SessionOptions::tokenizer)
      .def_rw("max_model_len", &SessionOptions::max_model_len)
      .def_rw("max_num_seqs", &SessionOptions::max_num_seqs)
      .def_rw("max_num_batched_tokens", &SessionOptions::max_num_batched_tokens)
      .def_rw("kv_cache_memory_bytes", &SessionOptions::kv_cache_memory_bytes)
      .def_rw("prefix_caching", &SessionOptions::prefix_caching)
      .def_rw("num_threads", &SessionOptions::num_threads)
      .def_rw("tensor_parallel_size", &SessionOptions::tensor_parallel_size)
      .def_rw("max_images", &SessionOptions::max_images)
      .def_rw("max_sounds", &SessionOptions::max_sounds)
      .def_rw("max_videos", &SessionOptions::max_videos)
      .def_rw("drafting", &SessionOptions::drafting)
      .def_rw("draft_model", &SessionOptions::draft_model)
      .def_rw("draft_method", &SessionOptions::draft_method)
      .def_rw("prompt_lookup_min", &SessionOptions::prompt_lookup_min)
      .def_rw("prompt_lookup_max", &SessionOptions::prompt_lookup_max)
      .def_rw("num_draft_tokens", &SessionOptions::num_draft_tokens)
      .def_rw("dummy_weights", &SessionOptions::dummy_weights)
      .def_rw("dummy_seed", &SessionOptions::dummy_seed)
      .def_rw("more", &SessionOptions::more)
      .def_rw("gpu_memory_utilization", &SessionOptions::gpu_memory_utilization)
      .def_rw("batch_invariant", &SessionOptions::batch_invariant)
      .def_rw("enforce_eager", &SessionOptions::enforce_eager);

  using NoGil = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Session>(module, "Session")
      .def(nb::init<const std::string&, const SessionOptions&>(), "model"_a, "options"_a, NoGil())
      .def("close", &Session::Close)
      .def_prop_ro("device", &Session::device)
      .def_prop_ro("vocab_size", &Session::vocab_size)
      .def_prop_ro("max_model_len", &Session::max_model_len)
      .def_prop_ro("stop_token_ids", &Session::stop_token_ids)
      .def_prop_ro("bos_token_id", &Session::bos_token_id)
      .def("encode", &Session::Encode, "text"_a, "add_special_tokens"_a, NoGil())
      .def("decode", &Session::Decode, "ids"_a, "skip_special_tokens"_a, NoGil())
      .def("render", &Session::Render, "conversation"_a, NoGil())
      .def("encode_prompt", &Session::EncodePrompt, "text"_a, NoGil())
      .def("encode_chat", &Session::EncodeChat, "conversation"_a, NoGil())
      .def("add_media", &Session::AddMedia, "prompt"_a, "media"_a, NoGil())
      .def("generate", &Generate, "jobs"_a, "on_progress"_a.none())
      .def("logits", &Logits, "ids"_a)
      .def("open", &Session::Open);

  nb::class_<Stream>(module, "Stream")
      .def(
          "add",
          [](Stream& stream, const Prompt& prompt, const Request& rest,
             std::optional<uint64_t> seed) { return stream.Add(MakeRequest(prompt, rest, seed)); },
          "prompt"_a, "request"_a, "seed"_a.none(), NoGil())
      .def("cancel", &Stream::Cancel, "request"_a)
      .def("take", &TakeUpdates)
      .def_prop_ro("fd", &Stream::ready_fd);
}

// What stays as it is and what changes, by its name in lapidary/server.h.
nb::dict StatsOf(const lapidary::Server& server) {
  lapidary::ServerStats stats;
  {
    const nb::gil_scoped_release no_gil;
    stats = server.stats();
  }
  nb::dict dict;
  dict["num_running"] = stats.num_running;
  dict["num_waiting"] = stats.num_waiting;
  dict["kv_cache_usage"] = stats.kv_cache_usage;
  dict["num_finished"] = stats.num_finished;
  dict["num_prompt_tokens"] = stats.num_prompt_tokens;
  dict["num_cached_prompt_tokens"] = stats.num_cached_prompt_tokens;
  dict["num_output_tokens"] = stats.num_output_tokens;
  dict["max_model_len"] = stats.max_model_len;
  dict["max_num_seqs"] = stats.max_num_seqs;
  dict["max_num_batched_tokens"] = stats.max_num_batched_tokens;
  dict["block_size"] = stats.block_size;
  dict["num_blocks"] = stats.num_blocks;
  return dict;
}

void BindServer(nb::module_& module) {
  using lapidary::Server;
  using NoGil = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Server>(module, "Server")
      .def(nb::init<const std::vector<std::string>&>(), "arguments"_a, NoGil())
      .def_prop_ro("url", &Server::url)
      .def_prop_ro("port", &Server::port)
      .def_prop_ro("model_names", &Server::model_names)
      .def("drain", &Server::Drain, NoGil())
      .def(
          "wait_for",
          [](const Server& server, double seconds) {
            return server.WaitFor(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)));
          },
          "seconds"_a, NoGil())
      .def("close", &Server::Close, NoGil())
      .def("stats", &StatsOf);
}

}  // namespace

NB_MODULE(_core, module) {
  module.attr("__version__") = lapidary::Version();
  // The deepest class is tried first.
  auto error = nb::exception<lapidary::Error>(module, "Error", PyExc_RuntimeError);
  nb::exception<lapidary::Busy>(module, "BusyError", error);
  nb::exception<lapidary::DeviceError>(module, "DeviceError", error);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const lapidary::InvalidInput& invalid) {
      PyErr_SetString(PyExc_ValueError, invalid.what());
    }
  });
  module.def(
      "set_log_level", &lapidary::SetLogLevel, "level"_a,
      "What is logged to stderr: \"off\", \"error\", \"warning\" (the default) or \"info\".");
  BindRequest(module);
  BindSession(module);
  module.def("option_names", &lapidary::OptionNames);
  module.def("find_model", &FindModel, "model"_a, "options"_a);
  BindServer(module);
}
