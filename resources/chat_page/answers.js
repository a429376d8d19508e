// --- asking the server ------------------------------------------------------------------------------

const BROKEN = 'The connection broke before the answer was complete.';
const KEY_NEEDED = 'The server asks for an API key.';

class ServerError extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

const sentence = (text) => {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : begun + '.';
};

// `path` is relative: a proxy may have put the page into a folder.
async function ask(path, options = {}) {
  const headers = {'Content-Type': 'application/json'};
  if (apiKey.get()) headers.Authorization = 'Bearer ' + apiKey.get();
  let response;
  try {
    response = await fetch(path, {...options, headers, redirect: 'error'});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ServerError(0, 'The server cannot be reached. Is it still running?');
  }
  if (response.ok) return response;
  const body = parseJson(await response.text().catch(() => ''));
  const said = asText(body?.error?.message) || 'the server answered ' + response.status;
  if (response.status === 401) throw new ServerError(401, KEY_NEEDED);
  if (response.status === 503) throw new ServerError(503, sentence('the server is busy: ' + said));
  throw new ServerError(response.status, sentence(said));
}

// The text of a response as it comes, up to so many characters.
async function* pieces(response, most = Infinity) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let left = most;;) {
    const {value, done} = await reader.read();
    if (done) return;
    left -= value.length;
    if (left < 0) {
      reader.cancel();
      throw new ServerError(0, 'Its reply is too long.');
    }
    yield value;
  }
}

// The data of each event of a stream.
async function* events(response, most = Infinity) {
  let data = [];
  let pending = '';
  for await (const piece of pieces(response, most)) {
    const lines = (pending + piece).split('\n');
    pending = lines.pop();
    for (const line of lines) {
      if (line.startsWith('data:')) data.push(line.slice(5).trim());
      if (line.trim() || !data.length) continue;
      yield data.join('\n');
      data = [];
    }
  }
}

function requestMessages({settings, messages}) {
  const list = settings.system.trim() ? [{role: 'system', content: settings.system}] : [];
  for (const message of messages) {
    if (message.role === 'user') {
      const text = sentText(message);
      const words = text ? [{type: 'text', text}] : [];
      list.push({role: 'user', content: message.media ? [...message.media.map(partOf), ...words] : text});
    } else if (message.role === 'tool') {
      list.push({role: 'tool', tool_call_id: message.tool_call_id, name: message.name, content: message.content});
    } else if (message.content || message.tool_calls.length) {
      const item = {role: 'assistant', content: message.content || null};
      if (message.reasoning) item.reasoning_content = message.reasoning;
      if (message.tool_calls.length) {
        item.tool_calls = message.tool_calls.map(({id, name, arguments: text}) =>
          ({id, type: 'function', function: {name, arguments: text}}));
      }
      list.push(item);
    }
  }
  return list;
}

function requestBody(conversation, goesOn) {
  const {settings} = conversation;
  const body = {messages: requestMessages(conversation), stream: true,
                stream_options: {include_usage: true, continuous_usage_stats: true},
                chat_template_kwargs: {enable_thinking: settings.thinking}};
  if (goesOn) Object.assign(body, {continue_final_message: true, add_generation_prompt: false});
  if (settings.model) body.model = settings.model;
  for (const name of NUMBERS) if (settings[name] !== '') body[name] = Number(settings[name]);
  const stop = settings['stop-at'].split('\n').filter(Boolean);
  if (stop.length) body.stop = stop;
  const tools = [...readTools(settings.tools).tools, ...mcpFunctions(conversation)];
  if (tools.length) body.tools = tools;
  return body;
}

// Adds what one event says to the answer; false when it was the last.
function takeEvent(data, run) {
  if (data === '[DONE]') return false;
  const chunk = parseJson(data);
  const {message} = run;
  if (chunk?.error) throw new ServerError(500, sentence(asText(chunk.error.message) || 'the server failed'));
  const choice = chunk?.choices?.[0];
  const delta = choice?.delta ?? {};
  const thought = asText(delta.reasoning_content) || asText(delta.reasoning);
  const calls = Array.isArray(delta.tool_calls) ? delta.tool_calls : [];
  if (thought || delta.content || calls.length) {
    const now = performance.now();
    run.first ??= now;
    run.last = now;
    run.tokens += 1;
    if (!thought && message.reasoning && !message.thinkingSeconds) message.thinkingSeconds = (now - run.first) / 1000;
  }
  message.reasoning += thought;
  message.content += asText(delta.content);
  for (const call of calls) {
    const kept = (message.tool_calls[call.index ?? message.tool_calls.length] ??= {id: '', name: '', arguments: ''});
    kept.id ||= asText(call.id);
    kept.name += asText(call.function?.name);
    kept.arguments += asText(call.function?.arguments);
  }
  if (choice?.finish_reason === 'length') message.note = 'Cut off at the token limit.';
  if (chunk?.usage) {
    run.tokens = chunk.usage.completion_tokens;
    run.isExact = true;
    message.contextTokens = (Number(chunk.usage.prompt_tokens) || 0) + (Number(chunk.usage.completion_tokens) || 0);
  }
  return true;
}

// The first token tells how long the prompt took; the rate is that of the others, unless they came almost at
// once: what arrives together says nothing of how fast it was made.
function statsOf(run) {
  if (!run.first) return '';
  const about = run.isExact ? '' : '~';
  const parts = [`first token ${seconds((run.first - run.begin) / 1000)}`];
  const isSpread = run.last - run.first > 250;
  const rate = isSpread ? (run.tokens - 1) / (run.last - run.first) : run.tokens / (run.last - run.begin);
  parts.push(`${about}${(1000 * rate).toFixed(1)} tok/s`);
  parts.push(`${about}${run.tokens} token${run.tokens === 1 ? '' : 's'}`);
  return parts.join(' · ');
}

function paint(run) {
  run.frame = 0;
  run.message.stats = statsOf(run);
  if (run.conversation !== current) return;
  const node = nodes.get(run.message);
  const follow = isAtEnd();
  if (node?.isConnected) fillAnswer(node, run.message);
  showContext();
  if (follow) scrollToEnd();
}

// `begun`: the last message, an answer to go on with. `versions`: those of the answer that this one replaces.
async function answer(conversation, {begun = null, versions = null} = {}) {
  if (runs.has(conversation) || !checkSettings()) return;
  const message = begun ?? readMessage({role: 'assistant'});
  if (versions) message.versions = versions;
  message.note = message.error = '';
  message.running = true;  // Who finds this in the storage finds half an answer.
  const run = {conversation, message, controller: new AbortController(), begin: performance.now(), tokens: 0, frame: 0,
               saved: 0};
  if (!begun) conversation.messages.push(message);
  runs.set(conversation, run);
  save(conversation);
  showCurrent();
  try {
    await mcpConnected(run.controller.signal);
    const body = JSON.stringify(requestBody(conversation, begun !== null));
    const response = await ask('v1/chat/completions', {method: 'POST', body, signal: run.controller.signal});
    let isDone = false;
    for await (const data of events(response)) {
      if (!takeEvent(data, run)) { isDone = true; break; }
      run.frame ||= requestAnimationFrame(() => paint(run));
      if (performance.now() - run.saved > 1000) {
        run.saved = performance.now();
        save(conversation);
      }
    }
    if (!isDone) throw new Error(BROKEN);
  } catch (error) {
    if (isLeaving) return;  // The browser has cut the connection; what is stored says so.
    if (run.controller.signal.aborted) message.note = 'Stopped.';
    else message.error = error instanceof ServerError ? error.message : BROKEN;
    if (error.status === 401) askForKey();
  }
  cancelAnimationFrame(run.frame);
  runs.delete(conversation);
  delete message.running;
  message.stats = statsOf(run);
  if (conversations.has(conversation.id)) save(conversation);
  paint(run);
  showComposer();
  renderConversations();
  if (message.error && conversation === current) nodes.get(message).querySelector('.error').scrollIntoView({block: 'nearest'});
}

// Another version of an answer; one that came to nothing makes room for it.
function answerAgain(message) {
  if (runs.has(current) || !checkSettings()) return;
  const {messages} = current;
  const hasCome = message.content || message.reasoning || message.tool_calls.length;
  const versions = hasCome ? startVersion(current, message) : message.versions;
  if (!hasCome) messages.splice(messages.indexOf(message));
  answer(current, {versions});
}

const makeTitle = (text, most = 80) => text.trim().split('\n')[0].slice(0, most);

let attached = [];  // media and files that go with the next message

function showAttached() {
  byId('attached').replaceChildren(...attached.map((medium) => {
    const drop = () => { attached = attached.filter((other) => other !== medium); showAttached(); byId('prompt').focus(); };
    const shown = medium.url && kindOf(medium.url) === 'image' ? [el('img', {src: medium.url, alt: ''})] : [];
    return el('li', {}, ...shown, el('span', {}, medium.name), iconButton('close', 'Remove ' + medium.name, drop));
  }));
}

async function attach(files) {
  for (const file of files) {
    try {
      attached.push(await (isMedium(file) ? readMedium(file) : readTextFile(file)));
    } catch (error) {
      const isTold = !isMedium(file) && error.message;
      toast(isTold ? error.message : `${file.name || 'This'} is neither an image nor audio.`);
    }
  }
  showAttached();
  byId('prompt').focus();
}

function send() {
  const prompt = byId('prompt');
  if (!(prompt.value.trim() || attached.length) || runs.has(current) || !checkSettings()) return;
  const message = {role: 'user', content: prompt.value.trim()};
  const goesAlong = attached.splice(0);
  const media = goesAlong.filter(({url}) => url);
  const files = goesAlong.filter(({url}) => !url);
  if (media.length) message.media = media;
  if (files.length) message.files = files;
  current.messages.push(message);
  current.title ||= makeTitle(prompt.value) || makeTitle(goesAlong[0].name);
  showAttached();
  prompt.value = '';
  fitPrompt();
  answer(current);
}
