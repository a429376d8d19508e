#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <mutex>

#include "adapter/adapter_table.h"
#include "base/release_pages.h"
#include "model/expert_counts.h"
#include "towers/media_encoder.h"

namespace lapidary {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

// vLLM's buckets.
const Buckets kFirstTokenBuckets = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                    0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                    20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
const Buckets kTokenBuckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                               0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1.0,   2.5,
                               5.0,   7.5,    10.0,  20.0, 40.0,  80.0};
const Buckets kRequestBuckets = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                 5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};

}  // namespace

class ServerMetrics::Impl {
 public:
  Impl(const std::string& prefix, const std::string& model_name, const Engine& engine,
       const MediaEncoder* encoder, const ExpertCounts* expert_counts,
       std::function<GrammarStats()> grammar_stats)
      : prefix_(prefix),
        // vLLM numbers its engines; we have one.
        labels_{{"engine", "0"}, {"model_name", model_name}},
        engine_(engine),
        encoder_(encoder),
        expert_counts_(expert_counts),
        grammar_stats_(std::move(grammar_stats)) {
    // All of them from the start: a rate needs the 0 before the first.
    for (const char* reason : {"stop", "length", "tool_calls", "abort", "error"}) {
      CountEnd(reason, 0);
    }
    AddCacheInfo();
    if (expert_counts_ != nullptr) AddExpertCounters();
    for (int idx = 0; idx < kNumDraftSources; ++idx) {
      const auto labels = With("source", DraftSourceName(static_cast<DraftSource>(idx)));
      by_source_[idx] = {&source_rounds_.Add(labels), &source_drafts_.Add(labels),
                         &source_accepted_.Add(labels)};
    }
    const SchedulerLimits& limits = engine.options().limits;
    for (int place = 0;
         place < std::max({limits.num_drafts, limits.num_forced_drafts, limits.num_ngram_drafts});
         ++place) {
      accepted_at_.push_back(&accepted_per_pos_.Add(With("position", std::to_string(place))));
    }
  }

  std::string Serialize() {
    {
      const std::lock_guard lock(mutex_);
      TakeEngineStats();
      if (encoder_ != nullptr) TakeMediaStats(encoder_->cache_stats());
      if (expert_counts_ != nullptr) TakeExpertCounts();
      if (grammar_stats_) TakeGrammarStats(grammar_stats_());
    }
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

 private:
  friend class ServerMetrics;

  Counter& AddCounter(const char* name, const char* help) {
    return prometheus::BuildCounter()
        .Name(prefix_ + name)
        .Help(help)
        .Register(registry_)
        .Add(labels_);
  }
  Gauge& AddGauge(const char* name, const char* help) {
    return prometheus::BuildGauge()
        .Name(prefix_ + name)
        .Help(help)
        .Register(registry_)
        .Add(labels_);
  }
  Histogram& AddHistogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram()
        .Name(prefix_ + name)
        .Help(help)
        .Register(registry_)
        .Add(labels_, buckets);
  }

  prometheus::Labels With(const char* name, const std::string& value) const {
    prometheus::Labels labels = labels_;
    labels[name] = value;
    return labels;
  }

  void CountEnd(const std::string& reason, int count) {
    // Add returns the one that is there.
    success_.Add(With("finished_reason", reason)).Increment(count);
  }

  // For routers that guess what is in a prefix cache. Any page serves either group; the tokens are
  // those of a page of the full one.
  void AddCacheInfo() {
    prometheus::Labels labels = With("num_gpu_blocks", std::to_string(NumPages()));
    const int block_size = engine_.kv_layout().tokens_per_page[kFullGroup];
    labels["block_size"] = std::to_string(block_size);
    labels["cache_dtype"] = KvFormatName(engine_.kv_layout().format);
    labels["enable_prefix_caching"] = engine_.options().limits.prefix_caching ? "True" : "False";
    prometheus::BuildGauge()
        .Name(prefix_ + "cache_config_info")
        .Help("The KV cache's shape, in labels; always 1.")
        .Register(registry_)
        .Add(labels)
        .Set(1);
  }
  void AddWeights(const std::vector<WeightRow>& rows) {
    auto& family = prometheus::BuildGauge()
                       .Name(prefix_ + "weight_bytes")
                       .Help(
                           "Bytes of weights in memory, by kind of tensor, format in the file "
                           "and format in memory.")
                       .Register(registry_);
    for (const WeightRow& row : rows) {
      prometheus::Labels labels = With("tensors", row.tensors);
      labels["stored"] = row.stored;
      labels["loaded"] = row.loaded;
      family.Add(labels).Set(static_cast<double>(row.loaded_bytes));
    }
  }
  int NumPages() const { return engine_.stats().scheduler.num_pages; }

  // 1, 2, 5, 10, 20, ... up to the longest sequence, as vLLM's.
  Buckets LengthBuckets() const {
    const SchedulerLimits& limits = engine_.options().limits;
    const int64_t max_len =
        limits.max_model_len > 0 ? limits.max_model_len : engine_.plan().max_context;
    Buckets buckets;
    for (int64_t power = 1; power <= max_len; power *= 10) {
      for (const int64_t step : {1, 2, 5}) {
        if (step * power <= max_len) buckets.push_back(static_cast<double>(step * power));
      }
    }
    return buckets;
  }

  // The engine counts these itself; a counter can only be raised.
  static void RaiseTo(Counter& counter, uint64_t value) {
    counter.Increment(std::max(0.0, static_cast<double>(value) - counter.Value()));
  }

  void TakeEngineStats() {
    const EngineStats engine_stats = engine_.stats();
    TakeDraftStats(engine_stats.drafts);
    const SchedulerStats& stats = engine_stats.scheduler;
    running_.Set(stats.num_running);
    waiting_.Set(stats.num_waiting);
    late_.Set(stats.num_late);
    const auto share = [&](int num_pages) {
      return stats.num_pages > 0 ? static_cast<double>(num_pages) / stats.num_pages : 0.0;
    };
    kv_usage_.Set(share(stats.num_pages - stats.num_free_pages - stats.num_reclaimable_pages));
    sliding_usage_.Set(share(stats.num_pages_in_use[kSlidingGroup]));
    full_usage_.Set(share(stats.num_pages_in_use[kFullGroup]));
    reclaimable_.Set(share(stats.num_reclaimable_pages));
    cached_sliding_.Set(share(stats.num_cached_pages[kSlidingGroup]));
    cached_full_.Set(share(stats.num_cached_pages[kFullGroup]));
    RaiseTo(evicted_pages_, stats.num_evicted_pages);
    RaiseTo(preemptions_, stats.num_preemptions);
    RaiseTo(prefix_queries_, stats.num_prompt_tokens);
    RaiseTo(prefix_hits_, stats.num_prefix_hit_tokens);
    RaiseTo(cached_prompt_tokens_, stats.num_prefix_hit_tokens);
    RaiseTo(computed_prompt_tokens_, stats.num_prompt_tokens - stats.num_prefix_hit_tokens);
    TakeSteps(engine_stats);
  }

  void TakeSteps(const EngineStats& stats) {
    std::vector<double> increments;
    for (size_t idx = 0; idx < stats.step_sizes.num_steps.size(); ++idx) {
      increments.push_back(
          static_cast<double>(stats.step_sizes.num_steps[idx] - step_sizes_.num_steps[idx]));
    }
    step_rows_.ObserveMultiple(increments, static_cast<double>(stats.num_rows - num_rows_));
    step_sizes_ = stats.step_sizes;
    num_rows_ = stats.num_rows;
  }

  void TakeMediaStats(const EncodedMediaCache::Stats& stats) {
    RaiseTo(media_queries_, stats.num_hits + stats.num_misses);
    RaiseTo(media_hits_, stats.num_hits);
    media_bytes_.Set(static_cast<double>(stats.num_bytes));
  }

  void TakeGrammarStats(const GrammarStats& stats) {
    RaiseTo(grammar_queries_, stats.num_hits + stats.num_misses);
    RaiseTo(grammar_hits_, stats.num_hits);
    RaiseTo(grammar_evictions_, stats.num_evictions);
    grammars_.Set(static_cast<double>(stats.num_grammars));
    grammar_bytes_.Set(static_cast<double>(stats.num_bytes));
  }

  void AddExpertCounters() {
    auto& family = prometheus::BuildCounter()
                       .Name(prefix_ + "expert_tokens_total")
                       .Help("Tokens that chose an expert, by layer and expert.")
                       .Register(registry_);
    for (int layer = 0; layer < expert_counts_->num_layers(); ++layer) {
      for (int expert = 0; expert < expert_counts_->num_experts(); ++expert) {
        prometheus::Labels labels = With("layer", std::to_string(layer));
        labels["expert"] = std::to_string(expert);
        expert_tokens_.push_back(&family.Add(labels));
      }
    }
  }
  void TakeExpertCounts() {
    const int num_experts = expert_counts_->num_experts();
    for (size_t idx = 0; idx < expert_tokens_.size(); ++idx) {
      const int layer = static_cast<int>(idx) / num_experts;
      const int expert = static_cast<int>(idx) % num_experts;
      RaiseTo(*expert_tokens_[idx], expert_counts_->Get(layer, expert));
    }
  }

  // The labels hold the names, and the value is when they did, as vLLM's routers read it.
  void TakeAdapters(const AdapterTable& adapters) {
    if (adapter_info_ == nullptr) {
      adapter_info_ = &prometheus::BuildGauge()
                           .Name(prefix_ + "lora_requests_info")
                           .Help("LoRA adapters of requests that run and wait; the time as value.")
                           .Register(registry_);
      adapter_requests_ = &prometheus::BuildCounter()
                               .Name(prefix_ + "lora_requests_total")
                               .Help("Requests by the LoRA adapter that answers them.")
                               .Register(registry_);
    }
    std::string running;
    std::string waiting;
    for (const AdapterTable::Entry& entry : adapters.List()) {
      if (entry.num_running > 0) running += (running.empty() ? "" : ",") + entry.name;
      if (entry.num_waiting > 0) waiting += (waiting.empty() ? "" : ",") + entry.name;
      Counter& requests = adapter_requests_->Add(With("lora_name", entry.name));
      // One that was loaded anew begins at 0 again.
      if (static_cast<double>(entry.num_requests) > requests.Value()) {
        RaiseTo(requests, entry.num_requests);
      }
    }
    if (last_adapter_info_ != nullptr) adapter_info_->Remove(last_adapter_info_);
    prometheus::Labels labels = labels_;
    labels["max_lora"] = std::to_string(adapters.options().max_adapters);
    labels["running_lora_adapters"] = running;
    labels["waiting_lora_adapters"] = waiting;
    last_adapter_info_ = &adapter_info_->Add(labels);
    last_adapter_info_->SetToCurrentTime();
  }

  void TakeDraftStats(const DraftStats& drafts) {
    RaiseTo(draft_rounds_, drafts.num_rounds);
    RaiseTo(draft_tokens_, drafts.num_drafts);
    RaiseTo(accepted_tokens_, drafts.num_accepted);
    for (size_t place = 0; place < accepted_at_.size(); ++place) {
      RaiseTo(*accepted_at_[place], drafts.accepted_at[place]);
    }
    for (int idx = 0; idx < kNumDraftSources; ++idx) {
      const DraftCounts& counts = drafts.by_source[idx];
      RaiseTo(*by_source_[idx].rounds, counts.num_rounds);
      RaiseTo(*by_source_[idx].drafts, counts.num_drafts);
      RaiseTo(*by_source_[idx].accepted, counts.num_accepted);
    }
    drafts_collapsed_.Set(drafts.has_collapsed ? 1 : 0);
  }

  const std::string prefix_;
  const prometheus::Labels labels_;
  const Engine& engine_;
  const MediaEncoder* const encoder_;
  const ExpertCounts* const expert_counts_;  // null: they are not counted
  const std::function<GrammarStats()> grammar_stats_;
  std::vector<Counter*> expert_tokens_;  // [layers, experts]
  std::mutex mutex_;                     // one scrape at a time raises the engine's counters
  prometheus::Registry registry_;

  Gauge& running_ = AddGauge("num_requests_running", "Sequences in the running batch.");
  Gauge& waiting_ = AddGauge("num_requests_waiting", "Sequences waiting to be admitted.");
  Gauge& kv_usage_ = AddGauge("kv_cache_usage_perc", "KV pages in use by sequences; 1 is all.");
  Gauge& late_ =
      AddGauge("num_requests_awaiting_mask",
               "Sequences that skip steps while their form's next tokens are found out.");
  prometheus::Family<Gauge>& group_usage_ =
      prometheus::BuildGauge()
          .Name(prefix_ + "kv_cache_group_usage_perc")
          .Help("KV pages in use by sequences, by layer group; 1 is all pages there are.")
          .Register(registry_);
  Gauge& sliding_usage_ = group_usage_.Add(With("group", "sliding"));
  Gauge& full_usage_ = group_usage_.Add(With("group", "full"));
  Gauge& reclaimable_ =
      AddGauge("prefix_cache_usage_perc", "KV pages that only the prefix cache holds; 1 is all.");
  prometheus::Family<Gauge>& group_reclaimable_ =
      prometheus::BuildGauge()
          .Name(prefix_ + "prefix_cache_group_usage_perc")
          .Help(
              "KV pages that only the prefix cache holds, by layer group; 1 is all pages there "
              "are.")
          .Register(registry_);
  Gauge& cached_sliding_ = group_reclaimable_.Add(With("group", "sliding"));
  Gauge& cached_full_ = group_reclaimable_.Add(With("group", "full"));
  Counter& evicted_pages_ = AddCounter("prefix_cache_evicted_pages_total",
                                       "KV pages that the prefix cache gave up for others.");
  Counter& preemptions_ = AddCounter("num_preemptions_total", "Sequences put back to waiting.");
  Counter& prefix_queries_ =
      AddCounter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.");
  Counter& prefix_hits_ =
      AddCounter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.");
  prometheus::Family<Counter>& prompt_sources_ =
      prometheus::BuildCounter()
          .Name(prefix_ + "prompt_tokens_by_source_total")
          .Help("Prompt tokens of requests that have begun, by where they came from.")
          .Register(registry_);
  Counter& computed_prompt_tokens_ = prompt_sources_.Add(With("source", "local_compute"));
  Counter& cached_prompt_tokens_ = prompt_sources_.Add(With("source", "local_cache_hit"));
  Counter& media_queries_ =
      AddCounter("mm_cache_queries_total", "Images and sounds looked up among the encoded ones.");
  Counter& media_hits_ =
      AddCounter("mm_cache_hits_total", "Images and sounds that were encoded already.");
  Gauge& media_bytes_ =
      AddGauge("mm_cache_usage_bytes", "Bytes of encoded images and sounds that are kept.");
  Counter& grammar_queries_ =
      AddCounter("grammar_cache_queries_total", "Forms of answers looked up among compiled ones.");
  Counter& grammar_hits_ =
      AddCounter("grammar_cache_hits_total", "Forms of answers that were compiled already.");
  Counter& grammar_evictions_ =
      AddCounter("grammar_cache_evictions_total", "Compiled forms given up for their memory.");
  Gauge& grammars_ = AddGauge("grammar_cache_entries", "Compiled forms that are kept.");
  Gauge& grammar_bytes_ =
      AddGauge("grammar_cache_usage_bytes", "Bytes of compiled forms, kept or in use.");
  Gauge& media_requests_ =
      AddGauge("mm_requests", "Requests whose images and sounds wait to be encoded, or are.");
  Gauge& media_waiting_ = AddGauge(
      "mm_waiting_pixels", "Pixels of images that wait to be decoded, once for every scan.");
  Gauge& media_running_ =
      AddGauge("mm_running_pixels", "The same of images that are being decoded and encoded.");
  Counter& media_pixels_ =
      AddCounter("mm_pixels_total", "The same of images that were decoded or found encoded.");
  Counter& media_files_ =
      AddCounter("mm_files_total", "Images and sounds that were encoded or found encoded.");
  Counter& media_skipped_ = AddCounter(
      "mm_files_skipped_total",
      "Images and sounds left out because their client had gone or another was refused.");
  Counter& media_refused_ = AddCounter("mm_requests_refused_total",
                                       "Requests refused because too many pixels waited already.");
  Gauge& request_bytes_ =
      AddGauge("request_memory_bytes",
               "Memory of requests: being read and prepared, and what they keep until answered.");
  Gauge& stored_bytes_ = AddGauge("stored_response_bytes",
                                  "Memory of conversations that previous_response_id may name.");
  Gauge& free_heap_bytes_ = AddGauge(
      "free_heap_bytes", "Memory that was freed and that the allocator keeps for what comes.");
  Gauge& answer_bytes_ =
      AddGauge("answer_memory_bytes",
               "Memory of answers: log-probabilities and texts being made, and what is not sent.");
  Gauge& unread_bytes_ =
      AddGauge("unread_answer_bytes", "Memory of answers that clients have not taken yet.");
  Gauge& unread_answers_ = AddGauge("unread_answers", "Responses that clients have not taken yet.");
  Counter& answers_refused_ =
      AddCounter("answers_refused_total", "Answers that there was no memory for.");
  prometheus::Family<Counter>& slow_readers_ =
      prometheus::BuildCounter()
          .Name(prefix_ + "slow_readers_closed_total")
          .Help("Connections closed because their clients read too slowly, by what ended them.")
          .Register(registry_);
  Counter& given_up_under_pressure_ = slow_readers_.Add(With("reason", "memory"));
  Counter& given_up_for_slowness_ = slow_readers_.Add(With("reason", "timeout"));
  Counter& draft_rounds_ = AddCounter("spec_decode_num_drafts_total", "Rounds of drafts verified.");
  Counter& draft_tokens_ = AddCounter("spec_decode_num_draft_tokens_total", "Tokens drafted.");
  Counter& accepted_tokens_ =
      AddCounter("spec_decode_num_accepted_tokens_total", "Drafted tokens that were accepted.");
  prometheus::Family<Counter>& accepted_per_pos_ =
      prometheus::BuildCounter()
          .Name(prefix_ + "spec_decode_num_accepted_tokens_per_pos_total")
          .Help("Drafted tokens that were accepted, by their place in the round.")
          .Register(registry_);
  std::vector<Counter*> accepted_at_;
  prometheus::Family<Counter>& source_rounds_ =
      prometheus::BuildCounter()
          .Name(prefix_ + "draft_source_rounds_total")
          .Help("Rounds of drafts verified, by who proposed them.")
          .Register(registry_);
  prometheus::Family<Counter>& source_drafts_ = prometheus::BuildCounter()
                                                    .Name(prefix_ + "draft_source_tokens_total")
                                                    .Help("Tokens drafted, by who proposed them.")
                                                    .Register(registry_);
  prometheus::Family<Counter>& source_accepted_ =
      prometheus::BuildCounter()
          .Name(prefix_ + "draft_source_accepted_tokens_total")
          .Help("Drafted tokens that were accepted, by who proposed them.")
          .Register(registry_);
  struct SourceCounters {
    Counter* rounds = nullptr;
    Counter* drafts = nullptr;
    Counter* accepted = nullptr;
  };
  std::array<SourceCounters, kNumDraftSources> by_source_{};  // by DraftSource
  prometheus::Family<Gauge>* adapter_info_ = nullptr;         // there once there are adapters
  Gauge* last_adapter_info_ = nullptr;
  prometheus::Family<Counter>* adapter_requests_ = nullptr;
  Gauge& drafts_collapsed_ =
      AddGauge("spec_decode_collapsed", "1 while hardly any draft is accepted: a wrong assistant.");
  Counter& prompt_tokens_ =
      AddCounter("prompt_tokens_total", "Prompt tokens of finished requests.");
  Counter& generation_tokens_ = AddCounter("generation_tokens_total", "Tokens generated.");
  prometheus::Family<Counter>& success_ = prometheus::BuildCounter()
                                              .Name(prefix_ + "request_success_total")
                                              .Help("Finished requests by reason.")
                                              .Register(registry_);
  prometheus::Family<Counter>& responses_ =
      prometheus::BuildCounter()
          .Name(prefix_ + "http_requests_total")
          .Help("HTTP requests by endpoint, status (0: the client left first) and error.")
          .Register(registry_);
  Histogram& step_rows_ =
      AddHistogram("iteration_tokens_total", "Tokens of a step: of prompts, of answers and drafts.",
                   Buckets(StepSizes::kBounds.begin(), StepSizes::kBounds.end()));
  StepSizes step_sizes_;  // that step_rows_ has
  uint64_t num_rows_ = 0;
  Histogram& first_token_ = AddHistogram("time_to_first_token_seconds",
                                         "From arrival to the first token.", kFirstTokenBuckets);
  Histogram& inter_token_ =
      AddHistogram("inter_token_latency_seconds", "Between two tokens of a choice.", kTokenBuckets);
  Histogram& end_to_end_ =
      AddHistogram("e2e_request_latency_seconds", "From arrival to the end.", kRequestBuckets);
  Histogram& queue_time_ = AddHistogram("request_queue_time_seconds",
                                        "From arrival to the first step.", kRequestBuckets);
  Histogram& prefill_time_ = AddHistogram(
      "request_prefill_time_seconds", "From the first step to the first token.", kRequestBuckets);
  Histogram& decode_time_ = AddHistogram("request_decode_time_seconds",
                                         "From the first token to the last.", kRequestBuckets);
  Histogram& inference_time_ = AddHistogram(
      "request_inference_time_seconds", "From the first step to the last token.", kRequestBuckets);
  Histogram& time_per_token_ =
      AddHistogram("request_time_per_output_token_seconds",
                   "Mean of a request, without its first token.", kTokenBuckets);
  Histogram& request_prompt_tokens_ =
      AddHistogram("request_prompt_tokens", "Tokens of a prompt.", LengthBuckets());
  Histogram& request_generation_tokens_ =
      AddHistogram("request_generation_tokens", "Tokens of an answer.", LengthBuckets());
};

ServerMetrics::ServerMetrics(const std::string& prefix, const std::string& model_name,
                             const Engine& engine, const MediaEncoder* encoder,
                             const ExpertCounts* expert_counts,
                             std::function<GrammarStats()> grammar_stats)
    : impl_(std::make_unique<Impl>(prefix, model_name, engine, encoder, expert_counts,
                                   std::move(grammar_stats))) {}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::SetWeights(const std::vector<WeightRow>& rows) { impl_->AddWeights(rows); }
void ServerMetrics::AddFirstToken(double seconds) { impl_->first_token_.Observe(seconds); }
void ServerMetrics::AddInterTokenLatency(double seconds) { impl_->inter_token_.Observe(seconds); }
void ServerMetrics::AddTokens(size_t num_tokens) {
  impl_->generation_tokens_.Increment(static_cast<double>(num_tokens));
}

void ServerMetrics::AddFinished(const std::string& reason, const RequestUsage& usage,
                                const RequestTimings& timings, double seconds_since_arrival) {
  impl_->CountEnd(reason, 1);
  impl_->prompt_tokens_.Increment(usage.prompt_tokens);
  impl_->end_to_end_.Observe(seconds_since_arrival);
  impl_->queue_time_.Observe(timings.queue_ms * 1e-3);
  impl_->prefill_time_.Observe(timings.prefill_ms * 1e-3);
  impl_->decode_time_.Observe(timings.decode_ms * 1e-3);
  impl_->inference_time_.Observe((timings.prefill_ms + timings.decode_ms) * 1e-3);
  const int32_t num_generated = usage.output_tokens - usage.given_tokens;
  if (num_generated > 1) {
    impl_->time_per_token_.Observe(timings.decode_ms * 1e-3 / (num_generated - 1));
  }
  impl_->request_prompt_tokens_.Observe(usage.prompt_tokens);
  impl_->request_generation_tokens_.Observe(num_generated);
}

void ServerMetrics::AddResponse(const std::string& path, int status,
                                const std::string& error_code) {
  prometheus::Labels labels = impl_->With("handler", path);
  labels["status"] = std::to_string(status);
  labels["error"] = error_code;
  impl_->responses_.Add(labels).Increment();
}

void ServerMetrics::SetMediaQueue(const MediaPool::Stats& stats) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->media_requests_.Set(static_cast<double>(stats.num_requests));
  impl_->media_waiting_.Set(static_cast<double>(stats.waiting_pixels));
  impl_->media_running_.Set(static_cast<double>(stats.running_pixels));
  Impl::RaiseTo(impl_->media_pixels_, stats.num_pixels);
  Impl::RaiseTo(impl_->media_files_, stats.num_files);
  Impl::RaiseTo(impl_->media_skipped_, stats.num_skipped);
  Impl::RaiseTo(impl_->media_refused_, stats.num_refused);
}

void ServerMetrics::SetMemory(size_t request_bytes, size_t stored_bytes,
                              const AnswerMemory::Stats& answers) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->request_bytes_.Set(static_cast<double>(request_bytes));
  impl_->stored_bytes_.Set(static_cast<double>(stored_bytes));
  impl_->answer_bytes_.Set(static_cast<double>(answers.num_bytes));
  impl_->unread_bytes_.Set(static_cast<double>(answers.unread_bytes));
  impl_->unread_answers_.Set(static_cast<double>(answers.num_unread));
  impl_->free_heap_bytes_.Set(static_cast<double>(FreeHeapBytes()));
  Impl::RaiseTo(impl_->answers_refused_, answers.num_refused);
  Impl::RaiseTo(impl_->given_up_under_pressure_, answers.num_given_up);
  Impl::RaiseTo(impl_->given_up_for_slowness_, answers.num_timed_out);
}

void ServerMetrics::SetAdapters(const AdapterTable& adapters) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->TakeAdapters(adapters);
}

std::string ServerMetrics::Serialize() { return impl_->Serialize(); }

}  // namespace lapidary
