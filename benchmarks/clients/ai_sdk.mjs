// The AI SDK with three of its providers. As checks.py has it, in JavaScript.
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, isStepCount, Output, streamText, tool } from 'ai';
import { z } from 'zod';

const MODEL = process.env.GATEWAY_MODEL;
const SCRIPTED = MODEL === 'scripted-chatml';
const SAID = 'Hello, this is the scripted model.';
const target = { baseURL: `${process.env.GATEWAY_URL}/v1`, apiKey: 'none' };
const compatible = createOpenAICompatible({
  name: 'mlx-tools',
  ...target,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const openai = createOpenAI(target);
const anthropic = createAnthropic(target);
const clients = {
  'ai-sdk': (name) => compatible.chatModel(name),
  'ai-sdk, openai': (name) => openai.responses(name),
  'ai-sdk, openai chat': (name) => openai.chat(name),
  'ai-sdk, anthropic': (name) => anthropic(name),
};
let model;

const same = { maxRetries: 0, maxOutputTokens: SCRIPTED ? 500 : 80 };
const schema = z.object({ setup: z.string(), punchline: z.string() });

function check(fact, found) {
  if (!fact) throw new Error(`found ${JSON.stringify(found)}`);
}

function checkAnswer(text) {
  check(SCRIPTED ? text === SAID : text, text);
}

function calculator(called) {
  return tool({
    description: 'Work out an arithmetic expression.',
    inputSchema: z.object({ expression: z.string() }),
    execute: async ({ expression }) => {
      called.push(expression);
      const [, one, sign, other] = expression.match(/(\d+) ?([*+]) ?(\d+)/) ?? [];
      return one ? String(sign === '*' ? one * other : Number(one) + Number(other)) : 'unknown';
    },
  });
}

async function talk(prompt, ask) {
  const called = [];
  const tools = { calculator: calculator(called) };
  const result = await ask({ model, ...same, prompt, tools, stopWhen: isStepCount(4) });
  return [called, await result.text, result];
}

function checkSum(called, text) {
  check(called.length && text, [called, text]);
  if (SCRIPTED) check(called[0] === '17 * 23' && text.includes('391'), [called, text]);
}

const tests = {
  answer: async () => checkAnswer((await generateText({ model, ...same, prompt: 'Hello!' })).text),
  call: async () => checkSum(...(await talk('What is 17 * 23?', generateText))),
  'two calls': async () => {
    const [called, text] = await talk('What is 17 * 23, and what is 5 + 6?', generateText);
    check(called.join() === '17 * 23,5 + 6' && text.includes('11'), [called, text]);
  },
  'streamed answer': async () => {
    const pieces = [];
    const result = streamText({ model, ...same, prompt: 'Hello!', onError: () => {} });
    for await (const piece of result.textStream) pieces.push(piece);
    checkAnswer(pieces.join(''));
    check((await result.usage).inputTokens > 0, await result.usage);
  },
  'streamed call': async () => {
    checkSum(...(await talk('What is 17 * 23?', streamText)));
  },
  'a call required': async () => {
    const tools = { calculator: calculator([]) };
    const asked = { model, ...same, prompt: 'Hello!', tools, toolChoice: 'required' };
    check((await generateText(asked)).toolCalls.length === 1);
  },
  'a tool chosen': async () => {
    const tools = { calculator: calculator([]) };
    const toolChoice = { type: 'tool', toolName: 'calculator' };
    const made = await generateText({ model, ...same, prompt: 'Hello!', tools, toolChoice });
    check(made.toolCalls[0].toolName === 'calculator', made.toolCalls);
  },
  schema: async () => {
    const asked = { model, ...same, prompt: 'Tell me a joke about cats.', output: Output.object({ schema }) };
    schema.parse((await generateText(asked)).output);
  },
  'streamed schema': async () => {
    const asked = { model, ...same, prompt: 'Tell me a joke about cats.', output: Output.object({ schema }) };
    schema.parse(await streamText(asked).output);
  },
  'unknown model': async () => {
    const nobody = clients[client]('nobody');
    try {
      await generateText({ ...same, model: nobody, prompt: 'Hello!' });
    } catch (error) {
      return check(error.statusCode === 404, error.message);
    }
    throw new Error('a model that is not there answered');
  },
  picture: async () => {
    const data = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
    const content = [{ type: 'file', mediaType: 'image/png', data }];
    await generateText({ model, ...same, messages: [{ role: 'user', content }] });
  },
};

let client;
for (const [name, make] of Object.entries(clients)) {
  client = name;
  model = make(MODEL);
  for (const [test, run] of Object.entries(tests)) {
    if (process.argv.length > 2 && !process.argv.slice(2).includes(test)) continue;
    let why = '';
    try {
      await run();
    } catch (error) {
      why = `${error.name}: ${error.message}`.slice(0, 300);
    }
    console.log(JSON.stringify({ client, test, passed: !why, why }));
  }
}
