// --- the thread -------------------------------------------------------------------------------------

const thread = byId('thread');
const nodes = new WeakMap();     // message -> its element
const unfolded = new WeakSet();  // messages whose thoughts are open
const seconds = (value) => (value < 10 ? value.toFixed(2) : value.toFixed(1)) + ' s';
const titleOf = (conversation) => conversation.title || 'New conversation';
const isAtEnd = () => thread.scrollHeight - thread.scrollTop - thread.clientHeight < 80;

function scrollToEnd() {
  thread.scrollTop = thread.scrollHeight;
  byId('latest').hidden = true;
}

const resultOf = (call, messages) =>
  messages.find((message) => message.role === 'tool' && message.tool_call_id === call.id);

function hasCall(message, messages) {
  return messages.some((other) => other.tool_calls?.some((call) => call.id === message.tool_call_id));
}

function renderThread() {
  const {messages} = current;
  const box = byId('messages');
  // Results of tools are shown with the calls they answer.
  const shown = messages.filter((message) => message.role !== 'tool' || !hasCall(message, messages));
  box.replaceChildren(...(shown.length ? shown.map(messageNode) : [welcome()]));
  showContext();
  scrollToEnd();
}

function welcome() {
  const suggest = (text) => {
    const use = () => { byId('prompt').value = text; send(); };
    return el('button', {type: 'button', class: 'outlined', onclick: use}, text);
  };
  return el('div', {class: 'empty'}, icon('gem'), el('h2', {}, current.settings.model || 'Lapidary'),
            el('p', {}, 'Runs on your own server. What is said stays in this browser.'),
            el('div', {}, suggest('What can you do?'), suggest('Tell me a short story.'),
               suggest('Sort these words: pear, apple, fig')));
}

function messageNode(message) {
  const speaker = {user: 'You', assistant: 'Model', tool: 'Result of a tool'}[message.role];
  const node = el('article', {class: 'message ' + message.role}, el('h2', {class: 'unseen'}, speaker));
  nodes.set(message, node);
  if (message.role === 'assistant') fillAnswer(node, message);
  else {
    if (message.media) node.append(el('div', {class: 'media'}, ...message.media.map(mediumNode)));
    if (message.files) node.append(el('div', {class: 'files'}, ...message.files.map(fileNode)));
    node.append(el('div', {class: 'text', hidden: !message.content}, message.content), foot(message));
  }
  return node;
}

function foot(message) {
  const {messages} = current;
  const tools = [iconButton('copy', 'Copy', () => copy(messageText(message))),
                 iconButton('edit', 'Edit', () => edit(message))];
  if (message.role === 'assistant') {
    if (message === messages.at(-1) && message.content && !message.tool_calls.length && !runs.has(current)) {
      tools.push(iconButton('send', 'Go on with the answer', () => answer(current, {begun: message})));
    }
    tools.push(iconButton('again', 'Answer again', () => answerAgain(message)));
  } else if (message === messages.at(-1) && message.role === 'user') {
    tools.push(iconButton('again', 'Ask for an answer', () => answer(current)));
  }
  tools.push(iconButton('trash', 'Delete', () => deleteMessage(message)));
  return el('div', {class: 'foot'}, ...(message.versions ? [versionsNode(message)] : []),
            el('span', {class: 'stats'}, message.stats ?? ''), el('span', {class: 'tools'}, ...tools));
}

function versionsNode(message) {
  const {at, tails} = message.versions;
  const go = (step) => () => {
    if (runs.has(current)) return;
    const head = switchVersion(current, message, at + step);
    save(current);
    renderThread();
    nodes.get(head).scrollIntoView({block: 'nearest'});
    const [back, forth] = nodes.get(head).querySelectorAll('.versions button');
    (step < 0 && !back.disabled ? back : forth.disabled ? back : forth).focus();
  };
  const arrow = (name, label, step) =>
    Object.assign(iconButton(name, label, go(step)), {disabled: !(at + step >= 0 && at + step < tails.length)});
  return el('span', {class: 'versions', role: 'group', 'aria-label': 'Versions'}, arrow('back', 'Previous version', -1),
            el('span', {}, el('span', {class: 'unseen'}, 'Version '), `${at + 1}/${tails.length}`),
            arrow('forth', 'Next version', +1));
}

// An answer's element is filled once and updated in place while the answer grows.
function fillAnswer(node, message) {
  const isRunning = runs.get(current)?.message === message;
  const remember = ({target}) => { if (target.open) unfolded.add(message); else unfolded.delete(message); };
  node.parts ??= {
    thought: el('details', {class: 'thought', hidden: true, open: unfolded.has(message), ontoggle: remember},
                el('summary'), el('div', {class: 'markdown'})),
    body: el('div', {class: 'markdown', dir: 'auto'}),
    calls: el('div'),
    end: el('div'),
  };
  const {thought, body, calls, end} = node.parts;
  if (!thought.parentNode) node.append(thought, body, calls, end);
  if (message.reasoning) {
    thought.hidden = false;
    const isThinking = isRunning && !message.content && !message.tool_calls.length;
    thought.firstChild.textContent = isThinking ? 'Thinking…'
      : message.thinkingSeconds >= 1 ? `Thought for ${seconds(message.thinkingSeconds)}` : 'Thoughts';
    renderBlocks(thought.lastChild, message.reasoning);
  }
  renderBlocks(body, message.content);
  calls.replaceChildren(...callNodes(message, isRunning));
  end.replaceChildren();
  const isEmpty = !message.content && !message.reasoning && !message.tool_calls.length;
  if (isRunning && isEmpty) {
    end.append(el('div', {class: 'waiting', role: 'img', 'aria-label': 'Waiting for the first token'},
                  el('i'), el('i'), el('i')));
  }
  if (message.note) end.append(el('p', {class: 'note'}, message.note));
  if (message.error) {
    const box = el('div', {class: 'error', role: 'alert'}, el('span', {}, message.error));
    const isLast = message === current.messages.at(-1);
    if (isLast) box.append(el('button', {type: 'button', class: 'outlined', onclick: () => answerAgain(message)}, 'Try again'));
    end.append(box);
  }
  end.append(foot(message));
}

function edit(message) {
  const node = nodes.get(message);
  const rows = Math.min(16, message.content.split('\n').length + 1);
  const area = el('textarea', {class: 'area', rows, 'aria-label': 'Edit the message'});
  area.value = message.content;
  const isQuestion = message.role === 'user';
  const done = () => { renderThread(); byId('prompt').focus(); };
  const keep = () => {
    message.content = area.value;
    save(current);
    done();
  };
  const sendAgain = () => {
    if (runs.has(current) || !checkSettings()) return;
    const following = current.messages[current.messages.indexOf(message) + 1];
    if (area.value === message.content && following?.role === 'assistant') return answerAgain(following);
    const asked = {...message, content: area.value, versions: startVersion(current, message)};
    current.messages.push(asked);
    answer(current);
  };
  node.classList.add('editing');
  node.parts = null;
  const hint = isQuestion ? 'Enter sends, Shift+Enter starts a line, Esc cancels' : 'Ctrl+Enter saves, Esc cancels';
  node.replaceChildren(area, el('div', {class: 'row foot'},
    ...(isQuestion ? [el('button', {type: 'button', class: 'primary', onclick: sendAgain}, 'Send')] : []),
    el('button', {type: 'button', class: 'outlined', onclick: keep}, 'Save'),
    el('button', {type: 'button', class: 'outlined', onclick: done}, 'Cancel'), el('small', {class: 'hint'}, hint)));
  area.addEventListener('keydown', (event) => {
    const isEnter = event.key === 'Enter' && !event.isComposing;
    const confirms = isEnter && (isQuestion ? !event.shiftKey : event.ctrlKey || event.metaKey);
    if (!confirms && event.key !== 'Escape') return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === 'Escape') done();
    else if (isQuestion) sendAgain();
    else keep();
  });
  area.focus();
}

function deleteMessage(message) {
  const conversation = current;
  const before = structuredClone(conversation.messages);
  const ids = new Set((message.tool_calls ?? []).map((call) => call.id));
  const goesToo = (other) => other.role === 'tool' && ids.has(other.tool_call_id);
  const isVersion = Boolean(message.versions);
  if (isVersion) dropVersion(conversation, message);
  else conversation.messages = conversation.messages.filter((other) => other !== message && !goesToo(other));
  const keep = () => {
    if (conversation.messages.length) save(conversation); else forget(conversation);
    if (conversation === current) renderThread();
    renderConversations();
  };
  keep();
  toast(isVersion ? 'Version deleted' : 'Message deleted', 'Undo', () => {
    if (runs.has(conversation)) return;
    conversation.messages = before;
    keep();
  });
}
