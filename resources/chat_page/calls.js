// --- the calls of an answer: what the model asks for, and what comes of it --------------------------------

const calling = new Map();           // call -> {controller, conversation} of what runs for it
const callProblems = new WeakMap();  // call -> why it did not run
const typedResults = new WeakMap();  // call -> the result that is being typed

function pretty(text) {
  const value = parseJson(text);
  return value === undefined ? text : JSON.stringify(value, null, 2);
}

function callNodes(message, isRunning) {
  if (!message.tool_calls.length) return [];
  const conversation = current;
  const areas = [];
  const cards = message.tool_calls.map((call) => {
    const heading = el('header', {}, icon('tool'), el('span', {}, 'wants to call ', el('b', {}, call.name)));
    const card = el('section', {class: 'call'}, heading, el('pre', {tabindex: 0}, pretty(call.arguments)));
    const result = resultOf(call, conversation.messages);
    const offered = mcpTools(conversation).get(call.name);
    if (result) {
      card.append(el('h3', {}, 'Result'), el('pre', {tabindex: 0}, pretty(result.content)));
    } else if (!isRunning && offered) {
      card.append(confirmNode(conversation, message, call, offered));
    } else if (!isRunning) {
      const area = el('textarea', {class: 'area code', rows: 2, 'aria-label': 'Result of ' + call.name,
                                   spellcheck: 'false', placeholder: `What ${call.name} returns: JSON or text`,
                                   oninput: ({target}) => typedResults.set(call, target.value)});
      area.value = typedResults.get(call) ?? '';
      areas.push([call, area]);
      card.append(el('div', {class: 'answer'}, area));
    }
    return card;
  });
  if (areas.length) {
    const submit = () => takeResults(conversation, message, areas.map(([call, area]) => [call, area.value]));
    const label = areas.length > 1 ? 'Send the results' : 'Send the result';
    const button = el('button', {type: 'button', class: 'primary', onclick: submit}, label);
    areas.at(-1)[1].after(el('div', {class: 'row'}, button));
  }
  return cards;
}

// [call, text]s become results; once every call has one, the model goes on.
function takeResults(conversation, message, results) {
  const {messages} = conversation;
  // It may be deleted meanwhile, or another version of it shown.
  if (conversations.get(conversation.id) !== conversation || !messages.includes(message)) return;
  for (const [{id, name}, content] of results) {
    let at = messages.indexOf(message) + 1;
    while (messages[at]?.role === 'tool') ++at;
    messages.splice(at, 0, {role: 'tool', tool_call_id: id, name, content});
  }
  save(conversation);
  const isComplete = message.tool_calls.every((call) => resultOf(call, messages));
  if (isComplete && messages.at(-1).role === 'tool' && !runs.has(conversation)) return answer(conversation);
  if (conversation === current) refreshCalls(message);
}

function refreshCalls(message) {
  const node = nodes.get(message);
  if (!node?.isConnected || !node.parts) return;
  const hadFocus = node.contains(document.activeElement);
  fillAnswer(node, message);
  if (hadFocus) (node.querySelector('.call :is(button, textarea):enabled') ?? byId('prompt')).focus({preventScroll: true});
}

// What asks before a call runs. Nothing runs without it, and no answer is kept for the next call.
function confirmNode(conversation, message, call, {server, tool}) {
  const running = calling.get(call);
  if (running) {
    const cancel = el('button', {type: 'button', class: 'outlined', onclick: () => running.controller.abort()}, 'Cancel');
    return el('div', {class: 'answer'}, el('p', {class: 'busy', role: 'status'}, `Runs on ${server.url}`),
              el('div', {class: 'row'}, cancel));
  }
  const values = parseJson(call.arguments || '{}');
  const problem = isObject(values) ? callProblems.get(call) : 'These arguments are no JSON object, so the call cannot run.';
  const button = (kind, label, onclick) =>
    el('button', {type: 'button', class: kind, 'aria-label': `${label} ${call.name}`, onclick}, label);
  const run = button('primary', 'Run', () => runCall(conversation, message, call, server, tool, values));
  run.disabled = !isObject(values);
  return el('div', {class: 'answer'}, el('p', {}, `Send this to ${server.url}?`),
    ...(problem ? [el('div', {class: 'error', role: 'alert'}, el('span', {}, problem))] : []),
    el('div', {class: 'row'}, run,
      button('outlined', 'Refuse', () => takeResults(conversation, message, [[call, 'The user did not allow this call.']]))));
}

async function runCall(conversation, message, call, server, tool, values) {
  if (calling.has(call)) return;
  const controller = new AbortController();
  calling.set(call, {controller, conversation});
  callProblems.delete(call);
  refreshCalls(message);
  let result = null;
  try {
    result = await server.call(tool.name, values, controller.signal);
  } catch (error) {
    if (!controller.signal.aborted) callProblems.set(call, error.message);
  }
  calling.delete(call);
  if (result !== null) return takeResults(conversation, message, [[call, result]]);
  if (conversation !== current) return;
  refreshCalls(message);
  nodes.get(message)?.querySelector('.call .error')?.scrollIntoView({block: 'nearest'});
}
