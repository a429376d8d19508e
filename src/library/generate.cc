#include <iterator>

#include "library/stream_impl.h"

namespace lapidary::v0 {
namespace {

// How often the caller is asked whether to go on.
constexpr std::chrono::milliseconds kPatience(50);
using Clock = std::chrono::steady_clock;
// Requests that are open at once: more than ever run together, so that none runs short.
constexpr size_t kMaxOpen = 1024;

template <typename T>
void Append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void Append(Answer& answer, Answer&& news) {
  answer.text += news.text;
  answer.reasoning += news.reasoning;
  Append(answer.tool_calls, std::move(news.tool_calls));
  Append(answer.tokens, std::move(news.tokens));
  if (!news.finish) return;
  answer.finish = news.finish;
  answer.stop_string = std::move(news.stop_string);
  answer.stop_token_id = news.stop_token_id;
  answer.usage = news.usage;
}

}  // namespace

std::vector<Output> Session::Generate(const std::vector<Request>& requests,
                                      const std::function<bool(size_t num_done)>& go_on) {
  Stream stream = Open();  // Whatever is thrown below, it cancels what is open.
  std::vector<Output> outputs(requests.size());
  size_t num_added = 0;
  size_t num_done = 0;
  size_t num_told = 0;  // of those done
  Clock::time_point told = Clock::now();
  bool goes_on = true;
  while (num_done < (goes_on ? requests.size() : num_added)) {
    while (goes_on && num_added < requests.size() && num_added - num_done < kMaxOpen) {
      const Request& request = requests[num_added];
      stream.Add(request);  // Requests are numbered from 1.
      outputs[num_added++].answers.resize(static_cast<size_t>(request.num_answers));
    }
    for (Update& update : stream.Take(kPatience)) {
      if (update.news.finish == Finish::kError) {
        if (update.news.is_device_error) throw DeviceError(update.news.error);
        throw Error(update.news.error);
      }
      Output& output = outputs[update.request - 1];
      Append(output.prompt_logprobs, std::move(update.prompt_logprobs));
      Append(output.answers[static_cast<size_t>(update.answer_index)], std::move(update.news));
      if (update.is_last) ++num_done;
    }
    const bool is_news = num_done != num_told || Clock::now() - told >= kPatience;
    if (!goes_on || !go_on || !is_news) continue;
    num_told = num_done;
    told = Clock::now();
    if (!go_on(num_done)) {
      goes_on = false;
      stream.CancelAll();
    }
  }
  return outputs;
}

}  // namespace lapidary::v0
