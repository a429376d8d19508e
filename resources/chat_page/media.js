// --- images and audio: data: URIs with a name; other files: their text ------------------------------------

const MEDIUM = /^data:(image|audio)\/([\w.+-]+);base64,[A-Za-z0-9+/]*={0,2}$/;
const MOST_PIXELS = 1600;    // along a side: more than a model sees of a square picture
const MOST_BYTES = 1 << 20;  // of a picture that is sent as it is
const TAKEN = ['image/jpeg', 'image/png', 'image/webp'];

const kindOf = (url) => MEDIUM.exec(url)?.[1];

function readMedia(list) {
  return (Array.isArray(list) ? list : []).map((raw) => ({url: asText(raw?.url), name: asText(raw?.name)}))
    .filter(({url}) => kindOf(url));
}

// OpenAI's content parts, as they are sent and exported.
const partOf = ({url}) => (kindOf(url) === 'image' ? {type: 'image_url', image_url: {url}} :
  {type: 'input_audio', input_audio: {data: url.slice(url.indexOf(',') + 1), format: MEDIUM.exec(url)[2].replace('x-', '')}});

function mediaOfParts(parts) {
  return readMedia(parts.map((part) => (part?.type === 'input_audio' ?
    {url: `data:audio/${asText(part.input_audio?.format) || 'wav'};base64,${asText(part.input_audio?.data)}`} :
    {url: part?.image_url?.url ?? part?.image_url})));
}

const dataUri = (blob) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(blob);
});

// A file as it goes with a message; large pictures are made smaller, kinds that servers do not know are drawn anew.
async function readMedium(file) {
  const name = file.name || 'pasted';
  if (file.type.startsWith('audio/')) return {url: await dataUri(file), name};
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, MOST_PIXELS / Math.max(picture.width, picture.height));
  if (scale === 1 && file.size <= MOST_BYTES && TAKEN.includes(file.type)) return {url: await dataUri(file), name};
  const canvas = el('canvas', {width: Math.round(scale * picture.width), height: Math.round(scale * picture.height)});
  canvas.getContext('2d').drawImage(picture, 0, 0, canvas.width, canvas.height);
  return {url: canvas.toDataURL('image/jpeg', 0.92), name};
}

const MOST_TEXT = 1 << 20;  // bytes of a file that is sent as text

const readFiles = (list) => (Array.isArray(list) ? list : [])
  .map((raw) => ({name: asText(raw?.name), text: asText(raw?.text)})).filter(({text}) => text);

// {name, text} of a file in UTF-8, or in UTF-16 where it says so. Throws the sentence that the user is told.
async function readTextFile(file) {
  const name = file.name || 'pasted';
  const bytes = new Uint8Array(await file.slice(0, MOST_TEXT + 1).arrayBuffer());
  if (String.fromCharCode(...bytes.subarray(0, 5)) === '%PDF-') {
    throw new Error(`${name} is a PDF, which this page does not read. Paste its text, or attach its pages as images.`);
  }
  let text = '';
  try {
    const isWide = (bytes[0] === 0xFF && bytes[1] === 0xFE) || (bytes[0] === 0xFE && bytes[1] === 0xFF);
    const encoding = !isWide ? 'utf-8' : bytes[0] === 0xFF ? 'utf-16le' : 'utf-16be';
    text = new TextDecoder(encoding, {fatal: file.size <= MOST_TEXT}).decode(bytes);
  } catch { /* no text */ }
  if (file.size && (!text || /[\0-\x08\x0e-\x1a\x1c-\x1f]/.test(text))) {
    throw new Error(`${name} is neither text, nor an image, nor audio.`);
  }
  if (!file.size) throw new Error(`${name} is empty.`);
  if (file.size > MOST_TEXT) throw new Error(`${name} is larger than 1 MB: attach the part that matters.`);
  return {name, text};
}

const isMedium = (file) => /^(?:image|audio)\//.test(file.type) && file.type !== 'image/svg+xml';

// A file as the model reads it: its name, and its text in a fence that nothing in the text closes.
function fileText({name, text}) {
  let fence = '```';
  for (const [ticks] of text.matchAll(/`{3,}/g)) if (ticks.length >= fence.length) fence = ticks + '`';
  const kind = /\.([A-Za-z0-9+]{1,12})$/.exec(name)?.[1] ?? '';
  return `${name.replace(/[\s`]+/g, ' ')}\n${fence}${kind}\n${text.replace(/\n$/, '')}\n${fence}`;
}

const sentText = ({files, content}) => [...(files ?? []).map(fileText), content].filter(Boolean).join('\n\n');

function sizeText(bytes) {
  return bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function fileNode({name, text}) {
  return el('details', {class: 'file'}, el('summary', {}, name + ' ', el('small', {}, sizeText(new Blob([text]).size))),
            el('pre', {tabindex: 0}, text));
}

function mediumNode({url, name}) {
  if (kindOf(url) === 'image') return el('img', {src: url, alt: name || 'An image'});
  return el('audio', {src: url, controls: true, 'aria-label': name || 'Audio'});
}
